// @ts-check
/** The text that will be said, beside the text field. It is shown where it differs from what is written. */

import { VivavoceError } from "./client.js";
import { page } from "./page.js";

const QUIET_MS = 350;
/** Most comparisons of words. A longer stretch of changes is marked as a whole. */
const MOST_COMPARISONS = 250_000;
const TOO_LONG = "string_above_max_length";
const WORDS = /\S+/g;

/** @typedef {import("./client.js").SpokenText} SpokenText */
/** @typedef {import("./client.js").SpokenPart} SpokenPart */

export class Preview {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  /** @type {AbortController | null} */
  #asking = null;
  #asked = "";

  /** @param {(text: string, signal: AbortSignal) => Promise<SpokenText>} ask */
  constructor(ask) {
    this.ask = ask;
  }

  /**
   * Shows the reading of a text once nothing has changed for a moment.
   * @param {string} text
   * @param {object} options the request's other fields
   */
  update(text, options) {
    const asked = JSON.stringify([text, options]);
    if (asked === this.#asked) return;
    this.#asked = asked;
    clearTimeout(this.#timer);
    this.#asking?.abort();
    if (text.trim()) this.#timer = setTimeout(() => this.#show(text), QUIET_MS);
    else hide();
  }

  /** @param {string} text */
  async #show(text) {
    const asking = (this.#asking = new AbortController());
    try {
      const spoken = await this.ask(text, asking.signal);
      if (asking === this.#asking && !asking.signal.aborted) show(text, spoken);
    } catch (error) {
      if (asking !== this.#asking || asking.signal.aborted) return;
      hide();
      // Other errors are the page's: they are told when it speaks, and the same text may be asked for again.
      // A text that is too long for one request is spoken all the same, because a live session takes a longer one.
      const refused = error instanceof VivavoceError && error.param === "input" && error.code !== TOO_LONG;
      if (refused) complain([error.message], true);
      else this.#asked = "";
    }
  }
}

function hide() {
  page.reading.panel.hidden = true;
  complain([]);
}

/** @param {string[]} messages @param {boolean} [refused] true if nothing will be said */
function complain(messages, refused = false) {
  page.reading.warning.classList.toggle("error", refused);
  page.reading.warning.textContent = messages.join(" ");
  page.reading.warning.hidden = messages.length === 0;
}

/** @param {string} written @param {SpokenText} spoken */
function show(written, spoken) {
  const said = wordsOf(spoken.parts);
  const changed = changedWords(written.match(WORDS) ?? [], said);
  page.reading.panel.hidden = !changed.includes(true);
  page.reading.text.replaceChildren(...marked(said, changed));
  complain(spoken.warnings);
}

/** @param {SpokenPart[]} parts */
function wordsOf(parts) {
  return parts.flatMap((part) => ("text" in part ? (part.text.match(WORDS) ?? []) : [`[pause:${part.pause_s}s]`]));
}

/**
 * The words as text, with a mark around each run of changed ones.
 * @param {string[]} words
 * @param {boolean[]} changed
 */
function marked(words, changed) {
  /** @type {(string | HTMLElement)[]} */
  const nodes = [];
  for (let start = 0, end = 0; start < words.length; start = end) {
    while (end < words.length && changed[end] === changed[start]) end++;
    const run = words.slice(start, end).join(" ");
    const mark = document.createElement("mark");
    mark.textContent = run;
    nodes.push(...(start ? [" "] : []), changed[start] ? mark : run);
  }
  return nodes;
}

/**
 * For each word that is said, true if it is not written so. A written pause tag is a word.
 * @param {string[]} written
 * @param {string[]} said
 */
export function changedWords(written, said) {
  let head = 0;
  while (head < Math.min(written.length, said.length) && same(written[head], said[head])) head++;
  let tail = 0;
  while (tail < Math.min(written.length, said.length) - head && same(written.at(-1 - tail), said.at(-1 - tail))) tail++;
  const kept = commonWords(written.slice(head, written.length - tail), said.slice(head, said.length - tail));
  return said.map((_, at) => at >= head && at < said.length - tail && !kept.has(at - head));
}

/**
 * Positions in b of a longest common subsequence of a and b.
 * @param {string[]} a
 * @param {string[]} b
 * @returns {Set<number>}
 */
function commonWords(a, b) {
  if (a.length * b.length > MOST_COMPARISONS) return new Set();
  const width = b.length + 1;
  const lengths = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      lengths[i * width + j] = same(a[i], b[j])
        ? lengths[(i + 1) * width + j + 1] + 1
        : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  const kept = new Set();
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (same(a[i], b[j])) {
      kept.add(j);
      i++;
      j++;
    } else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i++;
    else j++;
  }
  return kept;
}

/** @param {string | undefined} written @param {string | undefined} said */
function same(written, said) {
  return written === said || (written !== undefined && PAUSE.test(written) && said !== undefined && PAUSE.test(said));
}

const PAUSE = /^\[pause:[^\]]*\]$/i;
