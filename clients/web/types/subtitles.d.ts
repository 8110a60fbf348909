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
export function srt(words: SpokenWord[], text?: string, turns?: SpokenTurn[], audioS?: number): string;
/**
 * Subtitles as a WebVTT file.
 * @param {SpokenWord[]} words
 * @param {string} [text] the text that was sent, from which the signs come
 * @param {SpokenTurn[]} [turns]
 * @param {number} [audioS] length of the audio, behind which no cue is kept on the screen
 */
export function vtt(words: SpokenWord[], text?: string, turns?: SpokenTurn[], audioS?: number): string;
export type SpokenWord = import("./client.js").SpokenWord;
export type SpokenTurn = import("./client.js").SpokenTurn;
/**
 * a word with its signs
 */
export type Piece = {
    /**
     * what stands in front of it: a blank or nothing
     */
    gap: string;
    text: string;
    /**
     * in seconds
     */
    start: number;
    end: number;
    /**
     * false if its times are estimated
     */
    known: boolean;
    turn: number;
    voice: string | null;
};
export type Cue = Piece[];
