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
 * @property {boolean} [word_timestamps] true asks for the times of words, which not all models know
 * @property {boolean} [allow_voice_tags] false makes tags such as [voice:heart] text like any other
 * @property {number} [turn_pause_s] silence between the turns of two voices
 *
 * @typedef {object} Segment a turn of a dialogue; what it leaves out is the request's
 * @property {string} text
 * @property {string} [voice]
 * @property {string} [instructions]
 * @property {string} [language]
 * @property {number} [speed]
 * @property {number} [seed]
 * @property {string} [ref_audio]
 * @property {string} [ref_text]
 * @property {boolean} [x_vector_only_mode]
 *
 * @typedef {object} ClientOptions
 * @property {string} [apiKey]
 * @property {typeof fetch} [fetch]
 * @property {typeof WebSocket} [WebSocket]
 * @property {(pauseMs: number) => Promise<void>} [sleep] waits before a further attempt to connect
 *
 * @typedef {{ stages: string[] }} ReadText `stages` of reading are those of a request that names none
 * @typedef {{ id: string, task: string, languages: string[], takes_instructions: boolean, clones: boolean, word_times: boolean, text: ReadText }} Model
 * @typedef {"female" | "male"} Sex
 *
 * @typedef {object} Voice
 * @property {string} id
 * @property {string} name
 * @property {string | null} model the first that can speak with it
 * @property {Sex | null} sex
 * @property {string | null} accent
 * @property {string | null} language its own
 * @property {string[]} languages all that it speaks
 * @property {string | null} description
 * @property {number | null} created_at in seconds since 1970; of stored voices only
 *
 * @typedef {object} NewVoice a voice to store, from a recording or from a mix of the server's voices
 * @property {string} name
 * @property {string} consent the speaker's permission, in words
 * @property {Blob} [recording]
 * @property {string} [ref_text] the words of the recording
 * @property {string} [mix] for example "heart(2)+mine(1)"
 * @property {string} [model]
 *
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
 * @property {string} [text_begun] the next word or part, if the speech was cut while it was sent
 * @property {string[]} [warnings] sentences about text that was not spoken as written
 * @property {"length"} [finish_reason] max_new_tokens ended the speech
 * @property {number} [spoken_text_chars] characters of the text whose audio was sent
 * @property {SpokenTurn[]} [segments] the turns of a dialogue
 *
 * @typedef {object} SpokenWord a word as it is written; text_start and text_end count characters, not units of UTF-16
 * @property {string} word
 * @property {number | null} start seconds of the audio; null if its times are unknown
 * @property {number | null} end
 * @property {number} text_start
 * @property {number} text_end
 *
 * @typedef {{ index: number, voice: string | null, start: number, end: number }} SpokenTurn a turn, in seconds of the audio
 * @typedef {{ kind: "audio", bytes: Uint8Array }} AudioEvent
 * @typedef {{ kind: "words", words: SpokenWord[] }} WordsEvent
 * @typedef {{ kind: "done", words: SpokenWord[], turns: SpokenTurn[], seconds: number | null }} DoneEvent `seconds` is the audio's length; null if the server does not tell
 * @typedef {AudioEvent | WordsEvent | DoneEvent} SpeechEvent
 *
 * @typedef {{ type: "text", text: string }} TextPart
 * @typedef {{ type: "input_audio", input_audio: { data: string, format?: string } }} SoundPart a file in base64
 * @typedef {{ type: "image_url", image_url: { url: string } }} PicturePart
 * @typedef {{ role: "system" | "user" | "assistant", content: string | (TextPart | SoundPart | PicturePart)[] }} ChatMessage
 *
 * @typedef {object} ChatOptions
 * @property {string} [model]
 * @property {("text" | "audio")[]} [modalities]
 * @property {{ voice: string, format: string, speed?: number, sample_rate?: number }} [audio]
 * @property {number} [max_completion_tokens]
 * @property {number} [temperature]
 * @property {number} [top_p]
 * @property {number} [seed]
 *
 * @typedef {{ kind: "text", text: string }} AnswerText what the audio says, or the answer where nothing is spoken
 * @typedef {{ kind: "unspoken", text: string }} UnspokenText the rest of an answer, which its voice left out
 * @typedef {{ kind: "end", reason: "stop" | "length" }} AnswerEnd
 * @typedef {AnswerText | AudioEvent | UnspokenText | AnswerEnd} AnswerEvent
 */
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
    /** Stores a voice, which then is there by its id. @param {NewVoice} voice @returns {Promise<{ id: string, warnings?: string[] }>} */
    addVoice({ recording, mix, ...fields }: NewVoice): Promise<{
        id: string;
        warnings?: string[];
    }>;
    /** @param {string} id of a stored voice */
    deleteVoice(id: string): Promise<void>;
    /**
     * Speaks a whole utterance, over HTTP.
     * @param {string | Segment[]} text or the turns of a dialogue
     * @param {SpeechOptions} options
     * @param {AbortSignal} [signal]
     * @returns {Promise<Response>} whose body is the audio, as it is made
     */
    speak(text: string | Segment[], options: SpeechOptions, signal?: AbortSignal): Promise<Response>;
    /**
     * Speaks a whole utterance, over HTTP, with the times of its words between the pieces of its audio.
     * @param {string | Segment[]} text or the turns of a dialogue
     * @param {SpeechOptions} options
     * @param {AbortSignal} [signal]
     * @returns {AsyncGenerator<SpeechEvent, void, undefined>} ends with `done`; throws a VivavoceError otherwise
     */
    events(text: string | Segment[], options: SpeechOptions, signal?: AbortSignal): AsyncGenerator<SpeechEvent, void, undefined>;
    /**
     * Answers a conversation, in text or in speech while it is thought.
     * @param {ChatMessage[]} messages the last is the user's
     * @param {ChatOptions} options
     * @param {AbortSignal} [signal] interrupts the answer
     * @returns {AsyncGenerator<AnswerEvent, void, undefined>} ends with `end`; throws a VivavoceError otherwise
     */
    chat(messages: ChatMessage[], options: ChatOptions, signal?: AbortSignal): AsyncGenerator<AnswerEvent, void, undefined>;
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
    /**
     * true asks for the times of words, which not all models know
     */
    word_timestamps?: boolean | undefined;
    /**
     * false makes tags such as [voice:heart] text like any other
     */
    allow_voice_tags?: boolean | undefined;
    /**
     * silence between the turns of two voices
     */
    turn_pause_s?: number | undefined;
};
/**
 * a turn of a dialogue; what it leaves out is the request's
 */
export type Segment = {
    text: string;
    voice?: string | undefined;
    instructions?: string | undefined;
    language?: string | undefined;
    speed?: number | undefined;
    seed?: number | undefined;
    ref_audio?: string | undefined;
    ref_text?: string | undefined;
    x_vector_only_mode?: boolean | undefined;
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
/**
 * `stages` of reading are those of a request that names none
 */
export type ReadText = {
    stages: string[];
};
export type Model = {
    id: string;
    task: string;
    languages: string[];
    takes_instructions: boolean;
    clones: boolean;
    word_times: boolean;
    text: ReadText;
};
export type Sex = "female" | "male";
export type Voice = {
    id: string;
    name: string;
    /**
     * the first that can speak with it
     */
    model: string | null;
    sex: Sex | null;
    accent: string | null;
    /**
     * its own
     */
    language: string | null;
    /**
     * all that it speaks
     */
    languages: string[];
    description: string | null;
    /**
     * in seconds since 1970; of stored voices only
     */
    created_at: number | null;
};
/**
 * a voice to store, from a recording or from a mix of the server's voices
 */
export type NewVoice = {
    name: string;
    /**
     * the speaker's permission, in words
     */
    consent: string;
    recording?: Blob | undefined;
    /**
     * the words of the recording
     */
    ref_text?: string | undefined;
    /**
     * for example "heart(2)+mine(1)"
     */
    mix?: string | undefined;
    model?: string | undefined;
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
     * the next word or part, if the speech was cut while it was sent
     */
    text_begun?: string | undefined;
    /**
     * sentences about text that was not spoken as written
     */
    warnings?: string[] | undefined;
    /**
     * max_new_tokens ended the speech
     */
    finish_reason?: "length" | undefined;
    /**
     * characters of the text whose audio was sent
     */
    spoken_text_chars?: number | undefined;
    /**
     * the turns of a dialogue
     */
    segments?: SpokenTurn[] | undefined;
};
/**
 * a word as it is written; text_start and text_end count characters, not units of UTF-16
 */
export type SpokenWord = {
    word: string;
    /**
     * seconds of the audio; null if its times are unknown
     */
    start: number | null;
    end: number | null;
    text_start: number;
    text_end: number;
};
/**
 * a turn, in seconds of the audio
 */
export type SpokenTurn = {
    index: number;
    voice: string | null;
    start: number;
    end: number;
};
export type AudioEvent = {
    kind: "audio";
    bytes: Uint8Array;
};
export type WordsEvent = {
    kind: "words";
    words: SpokenWord[];
};
/**
 * `seconds` is the audio's length; null if the server does not tell
 */
export type DoneEvent = {
    kind: "done";
    words: SpokenWord[];
    turns: SpokenTurn[];
    seconds: number | null;
};
export type SpeechEvent = AudioEvent | WordsEvent | DoneEvent;
export type TextPart = {
    type: "text";
    text: string;
};
/**
 * a file in base64
 */
export type SoundPart = {
    type: "input_audio";
    input_audio: {
        data: string;
        format?: string;
    };
};
export type PicturePart = {
    type: "image_url";
    image_url: {
        url: string;
    };
};
export type ChatMessage = {
    role: "system" | "user" | "assistant";
    content: string | (TextPart | SoundPart | PicturePart)[];
};
export type ChatOptions = {
    model?: string | undefined;
    modalities?: ("audio" | "text")[] | undefined;
    audio?: {
        voice: string;
        format: string;
        speed?: number;
        sample_rate?: number;
    } | undefined;
    max_completion_tokens?: number | undefined;
    temperature?: number | undefined;
    top_p?: number | undefined;
    seed?: number | undefined;
};
/**
 * what the audio says, or the answer where nothing is spoken
 */
export type AnswerText = {
    kind: "text";
    text: string;
};
/**
 * the rest of an answer, which its voice left out
 */
export type UnspokenText = {
    kind: "unspoken";
    text: string;
};
export type AnswerEnd = {
    kind: "end";
    reason: "stop" | "length";
};
export type AnswerEvent = AnswerText | AudioEvent | UnspokenText | AnswerEnd;
import { LiveSession } from "./session.js";
import { VivavoceError } from "./session.js";
export { LiveSession, VivavoceError };
