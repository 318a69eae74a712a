// Makes elements and brings them up to date. Text only ever becomes text nodes: nothing from the server is read as HTML.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "line", "rect", "circle", "g", "title"]);
const HANDLERS = ["onclick", "oninput", "onchange", "onsubmit", "onkeydown", "onpointerdown", "onpointermove", "onpointerleave", "onclose"];

/** An element: `class`, `style` (an object), on… handlers and attributes; children are elements, texts, arrays or nothing. */
export function h(tag, given, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(given ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "style") for (const [property, set] of Object.entries(value)) element.style.setProperty(property, set);
    else if (name.startsWith("on")) element[name] = value;
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === undefined || child === null || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child);
  }
}

/** What is above everything else: the open dialog, or the page. Nothing outside an open dialog can be selected. */
export function foremost() {
  return document.querySelector("dialog[open]") ?? document.body;
}

/** Make what is in `container` look like `tree`, and keep every element that can stay: focus, selection and scrolling stay with it. */
export function show(container, ...tree) {
  const wanted = document.createElement("div");
  append(wanted, tree);
  children(container, wanted);
}

function children(from, to) {
  const wanted = [...to.childNodes];
  const keys = new Set(wanted.map(keyOf));
  const known = new Map();
  for (const node of [...from.childNodes]) {
    const key = keyOf(node);
    if (key === undefined) continue;
    if (keys.has(key)) known.set(key, node);
    else node.remove();
  }
  let at = from.firstChild;
  for (const node of wanted) {
    const key = keyOf(node);
    const same = key !== undefined ? known.get(key) : at && keyOf(at) === undefined ? at : undefined;
    if (!same) from.insertBefore(node, at);
    else {
      if (same === at) at = at.nextSibling;
      else from.insertBefore(same, at);
      known.delete(key);
      patch(same, node);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function keyOf(node) {
  return node.dataset?.key;
}

function patch(from, to) {
  if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName || keyOf(from) !== keyOf(to)) {
    from.replaceWith(to);
    return;
  }
  if (from.nodeType === Node.TEXT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  // What a pointer has made of an element, such as the tip of a chart, stays while it is there.
  if (from.classList?.contains("tip") || from.classList?.contains("cursor")) return;
  for (const { name } of [...from.attributes]) if (name !== "style" && name !== "open" && !to.hasAttribute(name)) from.removeAttribute(name);
  for (const { name, value } of to.attributes) if (name !== "style" && name !== "open" && from.getAttribute(name) !== value) from.setAttribute(name, value);
  if (from.style.cssText !== to.style.cssText) from.style.cssText = to.style.cssText;
  for (const name of HANDLERS) if (from[name] !== to[name]) from[name] = to[name];
  if (from.nodeName === "SELECT") {
    children(from, to);
    if (from !== document.activeElement) from.value = to.value;
    return;
  }
  if (from.type === "checkbox") from.checked = to.checked;
  if ((from.nodeName === "INPUT" || from.nodeName === "TEXTAREA") && from !== document.activeElement) from.value = to.value;
  children(from, to);
}
