// @ts-check
/**
 * Subtitles from the times of words: SubRip (SRT) and WebVTT, whose words have timestamps of their own.
 *
 * The rule is that of the Python client, whose vivavoce_client/subtitles.py states it. A test compares their files.
 */

const LINE_COLUMNS = 42;
const CUE_S = 7;
const SHORT_S = 1;
const PAUSE_S = 0.7;
const CLAUSE_PAUSE_S = 0.25;
/** Time of a character behind the last word whose time is known, as far as the audio goes. */
const CHARACTER_S = 0.06;
const BLANK = /[\s\x00-\x1f\x7f-\x9f\ufeff]+/g;
const CLOSERS = "\"'”’»)」』】》";
/** Signs that belong to the word in front of them. */
const BEHIND = new RegExp(`^[.,;:!?…%。，、；：！？）—–${CLOSERS}-]*`);
const BEFORE = /["'“‘«(¿¡（「『【《]*$/;
const SENTENCE = new RegExp(`[.!?…。！？][${CLOSERS}]*$`);
const CLAUSE = new RegExp(`[,;:—–，、；：][${CLOSERS}]*$`);
const OPENERS = "\"'“‘«(¿¡";
/** A word that is not in quotes or brackets to its end, in front of its point. */
const LONE_POINT = new RegExp(`^[${OPENERS}]*(.+)\\.$`);
const SMALL_LETTER = new RegExp(`^[${OPENERS}]*\\p{Ll}`, "u");
/** Abbreviations that a name follows, without their point and in small letters. */
const TITLES = new RegExp(
  "^(dr|mr|mrs|ms|mx|prof|hon|rev|capt|col|gen|lt|sgt|maj|gov|messrs|mme|mlle|hr|fr|dott|sig|sra|dra|st" +
    "|г|гг|ул|им|проф)$",
);
/** Numbers and abbreviations behind which a sentence may end. */
const ABBREVIATIONS = new RegExp(
  "^([0-9]{1,2}|abs|ave|bzw|ca|cf|co|corp|dept|dipl|eds|eq|est|etc|evtl|fig|ft|ggf|inc|ing|inkl|jr|ltd|max|min|mio|mrd" +
    "|mt|nr|nos|op|pp|resp|sen|sog|sr|str|tel|usw|vgl|vol|vs|zzgl|jan|feb|apr|jun|jul|aug|sept|oct|nov|dec" +
    "|др|млн|млрд|руб|стр|тыс)$",
);
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\uffe0-\uffe6]/g;
const STRETCH = /[^，、；：。！？]*[，、；：。！？]+|[^，、；：。！？]+/g;
/** Signs in which a player would read an arrow, a tag or an override. SubRip has no escapes. */
const SRT_MARKS = /(--(?=>)|<(?=[A-Za-z/])|[{](?=\\))/g;
const NO_WIDTH = "\u2060";

/**
 * @typedef {import("./client.js").SpokenWord} SpokenWord
 * @typedef {import("./client.js").SpokenTurn} SpokenTurn
 *
 * @typedef {object} Piece a word with its signs
 * @property {string} gap what stands in front of it: a blank or nothing
 * @property {string} text
 * @property {number} start in seconds
 * @property {number} end
 * @property {boolean} known false if its times are estimated
 * @property {number} turn
 * @property {string | null} voice
 *
 * @typedef {Piece[]} Cue
 */

/**
 * Subtitles as a SubRip file.
 * @param {SpokenWord[]} words
 * @param {string} [text] the text that was sent, from which the signs come
 * @param {SpokenTurn[]} [turns]
 * @param {number} [audioS] length of the audio, behind which no cue is kept on the screen
 */
export function srt(words, text = "", turns = [], audioS = Infinity) {
  const cues = cuesOf(piecesOf(words, text, turns, audioS), audioS);
  return cues.map((cue, at) => `${at + 1}\n${timesOf(cue, ",")}\n${srtPayload(cue)}\n\n`).join("");
}

/**
 * Subtitles as a WebVTT file.
 * @param {SpokenWord[]} words
 * @param {string} [text] the text that was sent, from which the signs come
 * @param {SpokenTurn[]} [turns]
 * @param {number} [audioS] length of the audio, behind which no cue is kept on the screen
 */
export function vtt(words, text = "", turns = [], audioS = Infinity) {
  const cues = cuesOf(piecesOf(words, text, turns, audioS), audioS);
  return `WEBVTT\n\n${cues.map((cue) => `${timesOf(cue, ".")}\n${vttPayload(cue)}\n\n`).join("")}`;
}

// ---- words ---------------------------------------------------------------------------------------------------------

/**
 * The words with their signs, turns and times.
 * @param {SpokenWord[]} words
 * @param {string} text
 * @param {SpokenTurn[]} turns
 * @param {number} audioS
 */
function piecesOf(words, text, turns, audioS) {
  let chars = [...text];
  if (words.some((word) => chars.slice(word.text_start, word.text_end).join("") !== word.word)) chars = [];
  const written = writtenOf(words, chars);
  const timed = words.map(({ start, end }, at) => ({ ...written[at], start: start ?? 0, end: end ?? 0, known: start !== null }));
  return withTimes(timed, audioS).flatMap(chopped).map((piece) => inTurn(piece, turns));
}

/** @param {SpokenWord[]} words @param {string[]} chars */
function writtenOf(words, chars) {
  let gap = "";
  let opening = found(BEFORE, chars.slice(0, words[0]?.text_start).join(""));
  return words.map((word, at) => {
    const between = chars.slice(word.text_end, words[at + 1]?.text_start).join("");
    const closing = found(BEHIND, between);
    const text = (opening + word.word + closing).replace(BLANK, " ").trim();
    const piece = { gap, text, turn: -1, voice: /** @type {string | null} */ (null) };
    const rest = between.slice(closing.length);
    opening = found(BEFORE, rest);
    gap = rest !== opening || !chars.length ? " " : "";
    return piece;
  });
}

/** @param {RegExp} signs @param {string} text */
function found(signs, text) {
  return signs.exec(text)?.[0] ?? "";
}

/** Estimates unknown times between their neighbours. No piece begins before another ends. @param {Piece[]} pieces @param {number} audioS */
function withTimes(pieces, audioS) {
  let clock = 0;
  /** @type {Piece[]} */
  const made = [];
  for (let at = 0; at < pieces.length; ) {
    const later = pieces.slice(at).findIndex(({ known }) => known);
    const until = later < 0 ? pieces.length : at + later;
    const unknown = pieces.slice(at, until);
    const chars = unknown.reduce((sum, { text }) => sum + length(text), 0);
    const end = later < 0 ? Math.min(clock + chars * CHARACTER_S, audioS) : pieces[until].start;
    const step = Math.max(0, end - clock) / Math.max(1, chars);
    for (const piece of unknown) {
      const start = clock;
      clock += length(piece.text) * step;
      made.push({ ...piece, start, end: clock });
    }
    if (later >= 0) {
      const start = Math.max(clock, pieces[until].start);
      clock = Math.max(start, pieces[until].end);
      made.push({ ...pieces[until], start, end: clock });
    }
    at = until + 1;
  }
  return made;
}

/** @param {Piece} piece @param {SpokenTurn[]} turns */
function inTurn(piece, turns) {
  // A millisecond is what the server rounds by.
  const turn = turns.findLast(({ start }) => start <= piece.start + 0.001);
  return turn ? { ...piece, turn: turn.index, voice: turn.voice } : piece;
}

/** Pieces that fit a line: text without blanks, such as Chinese, is cut behind its signs and by its length. @param {Piece} piece */
function chopped(piece) {
  if (width(piece.text) <= LINE_COLUMNS) return [piece];
  const parts = (piece.text.match(STRETCH) ?? []).flatMap((stretch) => {
    const lines = [""];
    for (const char of stretch) {
      if (width(lines[lines.length - 1] + char) > LINE_COLUMNS) lines.push("");
      lines[lines.length - 1] += char;
    }
    return lines;
  });
  const charS = (piece.end - piece.start) / length(piece.text);
  let start = piece.start;
  return parts.map((text, at) => {
    const part = { ...piece, text, start, end: start + length(text) * charS };
    start = part.end;
    return at ? { ...part, gap: "", known: false } : part;
  });
}

// ---- cues ----------------------------------------------------------------------------------------------------------

/** @param {Piece[]} pieces @param {number} audioS @returns {Cue[]} */
function cuesOf(pieces, audioS) {
  /** @type {Cue[]} */
  const joined = [];
  for (const cue of sentencesOf(pieces).flatMap(cutOf)) {
    const last = joined[joined.length - 1];
    const joins = last && ends(last) - last[0].start < SHORT_S && !isBreak(last[last.length - 1], cue[0]);
    if (joins && fits([...last, ...cue])) joined[joined.length - 1] = [...last, ...cue];
    else joined.push(cue);
  }
  return joined.map((cue, at) => lengthened(cue, joined[at + 1]?.[0].start ?? audioS));
}

/** @param {Cue} cue */
function ends(cue) {
  return cue[cue.length - 1].end;
}

/** @param {Piece} piece @param {Piece} following */
function isBreak(piece, following) {
  return following.start - piece.end >= PAUSE_S || piece.turn !== following.turn;
}

/** @param {Piece[]} pieces @returns {Cue[]} */
function sentencesOf(pieces) {
  /** @type {Cue[]} */
  const sentences = [];
  pieces.forEach((piece, at) => {
    const before = pieces[at - 1];
    if (!before || endsSentence(before, piece) || isBreak(before, piece)) sentences.push([]);
    sentences[sentences.length - 1].push(piece);
  });
  return sentences;
}

/** @param {Piece} piece @param {Piece} following */
function endsSentence(piece, following) {
  if (!SENTENCE.test(piece.text)) return false;
  const lone = LONE_POINT.exec(piece.text)?.[1];
  if (!lone || lone.endsWith(".")) return true;
  const word = lone.toLowerCase();
  if (TITLES.test(word) || SMALL_LETTER.test(following.text)) return false;
  const mayGoOn = ABBREVIATIONS.test(word) || word.split(".").every((each) => length(each) === 1);
  return !mayGoOn || pauses(piece, following);
}

/** @param {Piece} piece @param {Piece} following */
function pauses(piece, following) {
  return following.start - piece.end >= CLAUSE_PAUSE_S;
}

/** @param {Cue} sentence @returns {Cue[]} */
function cutOf(sentence) {
  /** @type {Cue[]} */
  const cues = [];
  while (!fits(sentence)) {
    let most = 1;
    while (fits(sentence.slice(0, most + 1))) most++;
    let end = most;
    while (end > Math.floor(most / 2) && !endsClause(sentence[end - 1], sentence[end])) end--;
    if (end === Math.floor(most / 2)) {
      const left = sentence.length - most;
      end = left < Math.floor(most / 2) ? Math.floor((sentence.length + 1) / 2) : most;
    }
    cues.push(sentence.slice(0, end));
    sentence = sentence.slice(end);
  }
  return [...cues, sentence];
}

/** @param {Piece} piece @param {Piece} following */
function endsClause(piece, following) {
  return CLAUSE.test(piece.text) || pauses(piece, following);
}

/** @param {Cue} cue */
function fits(cue) {
  // A single piece is a line, however long it lasts.
  if (cue.length === 1) return true;
  return ends(cue) - cue[0].start <= CUE_S && linesOf(cue).every((line) => width(plain(line)) <= LINE_COLUMNS);
}

/** @param {Cue} cue @param {number} limitS */
function lengthened(cue, limitS) {
  const end = Math.max(ends(cue), Math.min(cue[0].start + SHORT_S, limitS));
  return [...cue.slice(0, -1), { ...cue[cue.length - 1], end }];
}

// ---- lines ---------------------------------------------------------------------------------------------------------

/** Characters, not units of UTF-16. @param {string} text */
function length(text) {
  return [...text].length;
}

/** @param {string} text */
function width(text) {
  return length(text) + (text.match(WIDE)?.length ?? 0);
}

/** @param {Cue} line */
function plain(line) {
  return line.map(({ gap, text }, at) => (at ? gap : "") + text).join("");
}

/** One line, or the two whose wider one is least wide. @param {Cue} cue @returns {Cue[]} */
function linesOf(cue) {
  if (cue.length === 1 || width(plain(cue)) <= LINE_COLUMNS) return [cue];
  /** @type {Cue[]} */
  let best = [];
  let least = Infinity;
  for (let at = 1; at < cue.length; at++) {
    const lines = [cue.slice(0, at), cue.slice(at)];
    const widest = Math.max(...lines.map((line) => width(plain(line))));
    if (widest < least) [best, least] = [lines, widest];
  }
  return best;
}

/** @param {Cue} cue @param {(piece: Piece) => string} shown */
function payload(cue, shown) {
  return linesOf(cue).map((line) => line.map((piece, at) => (at ? piece.gap : "") + shown(piece)).join("")).join("\n");
}

/** @param {Cue} cue */
function srtPayload(cue) {
  return payload(cue, ({ text }) => text).replace(SRT_MARKS, `$1${NO_WIDTH}`);
}

/** @param {Cue} cue */
function vttPayload(cue) {
  let last = ms(cue[0].start);
  const end = endMs(cue);
  const voice = escaped((cue[0].voice ?? "").replace(BLANK, " "));
  const words = payload(cue, ({ text, known, start }) => {
    // A timestamp lies inside its cue, and behind the one before.
    if (!known || ms(start) <= last || ms(start) >= end) return escaped(text);
    last = ms(start);
    return `<${clockOf(last, ".")}>${escaped(text)}`;
  });
  return (voice ? `<v ${voice}>` : "") + words;
}

/** @param {string} text */
function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** @param {Cue} cue @param {string} point */
function timesOf(cue, point) {
  return `${clockOf(ms(cue[0].start), point)} --> ${clockOf(endMs(cue), point)}`;
}

/** @param {number} seconds */
function ms(seconds) {
  return Math.floor(seconds * 1000 + 0.5);
}

/** A cue without length is never shown. @param {Cue} cue */
function endMs(cue) {
  return Math.max(ms(ends(cue)), ms(cue[0].start) + 1);
}

/** @param {number} time in milliseconds @param {string} point */
function clockOf(time, point) {
  const digits = (/** @type {number} */ count, width = 2) => String(Math.floor(count)).padStart(width, "0");
  return `${digits(time / 3_600_000)}:${digits((time / 60_000) % 60)}:${digits((time / 1000) % 60)}${point}${digits(time % 1000, 3)}`;
}
