// Signing in at an OpenID provider: authorization code with PKCE. The token that comes back is verified by Queen, as every token is.

import { get, token } from "./api.js";

const KEPT = "queen.oidc"; // what must be known when the provider sends the browser back
const WORDS = 32;

/** How to sign in, as the server is configured; null if it knows no provider. */
export async function provider() {
  const { issuer, clientId, scopes, token: wanted } = await get("/api/v1/login");
  return issuer ? { issuer, clientId, scopes, wanted } : null;
}

/** Leave for the provider's page, which leads back to this one. */
export async function signIn(known) {
  if (!crypto.subtle) throw new Error("Signing in needs HTTPS: the browser has no cryptography for this page.");
  const { authorization_endpoint: where } = await discover(known);
  const kept = { state: random(), nonce: random(), verifier: random(), hash: location.hash };
  sessionStorage.setItem(KEPT, JSON.stringify(kept));
  const target = new URL(where);
  if (!/^https?:$/.test(target.protocol)) throw new Error("The provider names no address to sign in at.");
  const asked = {
    response_type: "code",
    client_id: known.clientId,
    redirect_uri: backHere(),
    scope: known.scopes,
    state: kept.state,
    nonce: kept.nonce,
    code_challenge: encoded(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(kept.verifier))),
    code_challenge_method: "S256",
  };
  for (const [name, value] of Object.entries(asked)) target.searchParams.set(name, value);
  location.assign(target);
}

/** Whether this page was opened by a provider that sends the browser back. */
export function isReturning() {
  const { searchParams } = new URL(location.href);
  return searchParams.has("state") && (searchParams.has("code") || searchParams.has("error"));
}

/** Exchange the code for a token, and clean the address. Throws with a sentence that says why not. */
export async function finish() {
  const { searchParams } = new URL(location.href);
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
  sessionStorage.removeItem(KEPT);
  // A code works once, and must not stay in the history of the browser.
  history.replaceState(null, "", `/${kept?.hash ?? ""}`);
  if (!kept || searchParams.get("state") !== kept.state) throw new Error("Nobody asked for this sign-in here: begin again.");
  if (searchParams.has("error")) throw new Error(`The provider refused: ${searchParams.get("error_description") ?? searchParams.get("error")}`);
  const known = await provider();
  if (!known) throw new Error("This server has no provider any more.");
  const { token_endpoint: where } = await discover(known);
  const answer = await tokens(where, {
    grant_type: "authorization_code",
    code: searchParams.get("code"),
    redirect_uri: backHere(),
    client_id: known.clientId,
    code_verifier: kept.verifier,
  });
  if (claimsOf(answer.id_token)?.nonce !== kept.nonce) throw new Error("The provider's answer is not for this sign-in: begin again.");
  const held = answer[known.wanted];
  if (!held) throw new Error(`The provider has sent no ${known.wanted}.`);
  token.set(held);
}

async function tokens(where, body) {
  let answer;
  try {
    answer = await fetch(where, { method: "POST", body: new URLSearchParams(body), credentials: "omit" });
  } catch {
    throw new Error("The provider's tokens cannot be reached from this page: it must allow requests of this origin (CORS).");
  }
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(`The provider refused: ${told.error_description ?? told.error ?? answer.status}`);
  return told;
}

async function discover({ issuer }) {
  let told;
  try {
    told = await (await fetch(`${issuer.replace(/\/$/, "")}/.well-known/openid-configuration`, { credentials: "omit" })).json();
  } catch {
    throw new Error(`The provider ${issuer} cannot be reached from this page: it must be there, and allow requests of this origin (CORS).`);
  }
  if (told.issuer !== issuer) throw new Error(`The provider calls itself ${told.issuer}, but QUEEN_OIDC_ISSUER is ${issuer}.`);
  if (new URL(told.token_endpoint).origin !== new URL(issuer).origin) throw new Error("The provider's tokens are at another origin than the provider: this page may not ask there.");
  return told;
}

function backHere() {
  return `${location.origin}/`;
}

function random() {
  return encoded(crypto.getRandomValues(new Uint8Array(WORDS)));
}

function encoded(bytes) {
  return btoa(String.fromCharCode(...new Uint8Array(bytes))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

/** Read, not verified: Queen verifies the signature of every token. */
function claimsOf(jwt) {
  try {
    return JSON.parse(atob(jwt.split(".")[1].replace(/-/g, "+").replace(/_/g, "/")));
  } catch {
    return null;
  }
}
