/**
 * Text that was said to the end of a part, for an agent's history.
 * @param {UtteranceEnd} end
 * @param {number} [playedMs] limits it to what a player has played: milliseconds of this utterance
 */
export function textSaid(end: UtteranceEnd, playedMs?: number): string;
/**
 * @typedef {object} SpeechOptions
 * @property {string} [model]
 * @property {string} [voice]
 * @property {string} [language]
 * @property {string} [instructions]
 * @property {string} [response_format]
 * @property {number} [speed]
 * @property {number} [seed]
 * @property {number} [sample_rate]
 * @property {"trim" | "keep"} [leading_silence] silence before the first word: all but 20 ms dropped, or kept
 * @property {string} [ref_audio] base64 or a data: URL
 * @property {string} [ref_text]
 * @property {boolean} [x_vector_only_mode]
 * @property {boolean | string[]} [normalize] true: all that is written is read as words; false: as written; or stages
 * @property {"none" | "sentence"} [split]
 *
 * @typedef {object} ClientOptions
 * @property {string} [apiKey]
 * @property {typeof fetch} [fetch]
 * @property {typeof WebSocket} [WebSocket]
 * @property {(pauseMs: number) => Promise<void>} [sleep] waits before a further attempt to connect
 *
 * @typedef {{ id: string, languages: string[], takes_instructions: boolean, clones: boolean }} Model
 * @typedef {{ id: string, name: string, model: string }} Voice
 * @typedef {{ text: string } | { pause_s: number }} SpokenPart
 * @typedef {{ text: string, parts: SpokenPart[], language: string, stages: string[], left_out: string[], warnings: string[] }} SpokenText
 * @typedef {{ type: string } & Record<string, unknown>} Message
 * @typedef {{ utterance_index: number, format: string, sample_rate: number }} UtteranceStart
 * @typedef {{ text: string, end_ms: number }} SaidPart text all of whose audio was sent, and its end in the audio
 *
 * @typedef {object} UtteranceEnd
 * @property {number} utterance_index
 * @property {number} duration_ms of the audio that was sent
 * @property {number} total_bytes
 * @property {number} frames codec frames that were sent
 * @property {boolean} cancelled
 * @property {SaidPart[]} parts
 * @property {string} [text_begun] the text of the part behind them, if it was cancelled while it was sent
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
export class VivavoceClient {
    /**
     * @param {string | URL} baseUrl
     * @param {ClientOptions} [options]
     */
    constructor(baseUrl: string | URL, options?: ClientOptions);
    baseUrl: URL;
    apiKey: string;
    fetch: typeof fetch;
    WebSocket: {
        new (url: string | URL, protocols?: string | string[]): WebSocket;
        prototype: WebSocket;
        readonly CONNECTING: 0;
        readonly OPEN: 1;
        readonly CLOSING: 2;
        readonly CLOSED: 3;
    } | undefined;
    sleep: (pauseMs: number) => Promise<void>;
    /** @returns {Promise<Model[]>} */
    models(): Promise<Model[]>;
    /** @returns {Promise<Voice[]>} */
    voices(): Promise<Voice[]>;
    /**
     * Speaks a whole utterance, over HTTP.
     * @param {string} text
     * @param {SpeechOptions} options
     * @param {AbortSignal} [signal]
     * @returns {Promise<Response>} whose body is the audio, as it is made
     */
    speak(text: string, options: SpeechOptions, signal?: AbortSignal): Promise<Response>;
    /**
     * The text that would be said: numbers, links and signs as words. Nothing is spoken.
     * @param {string} text
     * @param {SpeechOptions} options
     * @param {AbortSignal} [signal]
     * @returns {Promise<SpokenText>}
     */
    text(text: string, options: SpeechOptions, signal?: AbortSignal): Promise<SpokenText>;
    /**
     * Opens a live session, which takes text and returns speech at the same time.
     * @param {SpeechOptions} options
     * @returns {Promise<LiveSession>}
     */
    live(options: SpeechOptions): Promise<LiveSession>;
    #private;
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
export type SpeechOptions = {
    model?: string | undefined;
    voice?: string | undefined;
    language?: string | undefined;
    instructions?: string | undefined;
    response_format?: string | undefined;
    speed?: number | undefined;
    seed?: number | undefined;
    sample_rate?: number | undefined;
    /**
     * silence before the first word: all but 20 ms dropped, or kept
     */
    leading_silence?: "trim" | "keep" | undefined;
    /**
     * base64 or a data: URL
     */
    ref_audio?: string | undefined;
    ref_text?: string | undefined;
    x_vector_only_mode?: boolean | undefined;
    /**
     * true: all that is written is read as words; false: as written; or stages
     */
    normalize?: boolean | string[] | undefined;
    split?: "none" | "sentence" | undefined;
};
export type ClientOptions = {
    apiKey?: string | undefined;
    fetch?: typeof fetch | undefined;
    WebSocket?: {
        new (url: string | URL, protocols?: string | string[]): WebSocket;
        prototype: WebSocket;
        readonly CONNECTING: 0;
        readonly OPEN: 1;
        readonly CLOSING: 2;
        readonly CLOSED: 3;
    } | undefined;
    /**
     * waits before a further attempt to connect
     */
    sleep?: ((pauseMs: number) => Promise<void>) | undefined;
};
export type Model = {
    id: string;
    languages: string[];
    takes_instructions: boolean;
    clones: boolean;
};
export type Voice = {
    id: string;
    name: string;
    model: string;
};
export type SpokenPart = {
    text: string;
} | {
    pause_s: number;
};
export type SpokenText = {
    text: string;
    parts: SpokenPart[];
    language: string;
    stages: string[];
    left_out: string[];
    warnings: string[];
};
export type Message = {
    type: string;
} & Record<string, unknown>;
export type UtteranceStart = {
    utterance_index: number;
    format: string;
    sample_rate: number;
};
/**
 * text all of whose audio was sent, and its end in the audio
 */
export type SaidPart = {
    text: string;
    end_ms: number;
};
export type UtteranceEnd = {
    utterance_index: number;
    /**
     * of the audio that was sent
     */
    duration_ms: number;
    total_bytes: number;
    /**
     * codec frames that were sent
     */
    frames: number;
    cancelled: boolean;
    parts: SaidPart[];
    /**
     * the text of the part behind them, if it was cancelled while it was sent
     */
    text_begun?: string | undefined;
};
