"""The dashboard that the server serves at `/`: plain files for a browser, without a build step."""
