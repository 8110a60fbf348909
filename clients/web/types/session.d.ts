/**
 * @typedef {import("./client.js").SpeechOptions} SpeechOptions
 * @typedef {import("./client.js").Message} Message
 * @typedef {import("./client.js").UtteranceStart} UtteranceStart
 * @typedef {import("./client.js").UtteranceEnd} UtteranceEnd
 * @typedef {import("./client.js").SpokenWord} SpokenWord
 */
/** A refusal by the server, with OpenAI's four keys, or a failed connection. */
export class VivavoceError extends Error {
    /** @param {{ message: string, type?: string | null, param?: string | null, code?: string | null }} detail */
    constructor(detail: {
        message: string;
        type?: string | null;
        param?: string | null;
        code?: string | null;
    });
    type: string | null;
    param: string | null;
    code: string | null;
}
/**
 * A live session. Set the `on…` properties to receive its events. All are optional.
 *
 * If the connection is lost before any of an utterance was heard, the session connects again, with growing pauses, and
 * sends the text again. If some of it was heard, `onerror` is called with the code stream_broken, so that nothing is heard
 * twice. Text with `split: "sentence"` is never sent again. The next text opens a new connection.
 */
export class LiveSession {
    /**
     * @param {() => WebSocket} dial
     * @param {string} apiKey
     * @param {SpeechOptions} options
     * @param {(pauseMs: number) => Promise<void>} sleep
     */
    constructor(dial: () => WebSocket, apiKey: string, options: SpeechOptions, sleep: (pauseMs: number) => Promise<void>);
    /** @type {(start: UtteranceStart) => void} */
    onstart: (start: UtteranceStart) => void;
    /** @type {(bytes: ArrayBuffer) => void} The next bytes of the utterance's file. */
    onaudio: (bytes: ArrayBuffer) => void;
    /** @type {(words: SpokenWord[]) => void} Words of the utterance whose times are known, with `word_timestamps`. */
    onwords: (words: SpokenWord[]) => void;
    /** @type {(end: UtteranceEnd) => void} */
    ondone: (end: UtteranceEnd) => void;
    /** @type {(error: VivavoceError) => void} */
    onerror: (error: VivavoceError) => void;
    /** @type {Record<string, number>} The server's limits, by name: for example max_utterance_chars. */
    limits: Record<string, number>;
    /** @type {(code: number, reason: string) => void} Called once, after close() or drop(). */
    onclose: (code: number, reason: string) => void;
    /**
     * @returns {Promise<void>} when the server has accepted the options. Rejects after three attempts without an answer.
     */
    open(): Promise<void>;
    /** True until close() or drop(). A lost connection is opened again with the next text. */
    get isOpen(): boolean;
    /** Changes the options of later utterances. @param {SpeechOptions} options */
    configure(options: SpeechOptions): Promise<void>;
    /** Adds text to the utterance, in fragments of any size. Rejects after close(). @param {string} text */
    say(text: string): Promise<void>;
    /** Ends the text of the utterance. */
    end(): void;
    /** Stops at once. Nothing more of the utterance is heard. @param {boolean} speaking true if one is running */
    cancel(speaking: boolean): void;
    /** Closes the connection after everything sent has been spoken. */
    close(): void;
    /** Closes the connection at once. */
    drop(): void;
    #private;
}
export type SpeechOptions = import("./client.js").SpeechOptions;
export type Message = import("./client.js").Message;
export type UtteranceStart = import("./client.js").UtteranceStart;
export type UtteranceEnd = import("./client.js").UtteranceEnd;
export type SpokenWord = import("./client.js").SpokenWord;
