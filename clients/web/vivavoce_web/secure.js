// @ts-check
/** What browsers withhold from a page over plain http from another machine, and how the page manages without. */

/** False over plain http from another machine: browsers give no AudioWorklet, clipboard or microphone there. */
export const isSecure = window.isSecureContext;

/** The reason why something is off, and two ways to get it. @param {string} what for example "Recording" */
export function whyInsecure(what) {
  const { hostname, port } = location;
  const at = port || "80";
  return (
    `${what} is off, because browsers allow it only over https or from localhost. Put a proxy with TLS in front of the server, ` +
    `or run ssh -L ${at}:localhost:${at} ${hostname} and open http://localhost:${at}/ here.`
  );
}

/** Copies a text. Throws an error if the browser forbids it. @param {string} text */
export async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const focused = document.activeElement;
  const field = document.createElement("textarea");
  field.className = "visually-hidden";
  field.style.whiteSpace = "pre"; // else the browser copies no indentation
  field.readOnly = true;
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  if (focused instanceof HTMLElement) focused.focus();
  if (!copied) throw new Error("The browser does not let this page copy. Select the code and copy it by hand.");
}
