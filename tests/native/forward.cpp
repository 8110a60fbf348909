// Speaks with a model of random weights through the interface alone, as Python does: prompts of two rows, frames of both
// at once, Code2Wav in uneven pieces. Prints each frame's codes and the samples, for a comparison of levels and platforms.
// Memory is of exactly the size that the interface states, so that a sanitizer sees every access beyond it.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interface.h"

namespace {

enum {
    HIDDEN = 48, INNER = 80, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 16, POSITIONS = 64,
    GROUPS = 5, VOCABULARY = 70, CONTROL = 64, END = 66, TEXT = 90,
    ROWS = 2, TOKENS = 11, FRAMES = 19, RING = 8, SCORES = 32,
    CODEBOOK_DIM = 24, LATENT_DIM = 40, WINDOW = 6, CODES = 64,
};

uint32_t random_state = 1;
float noise() {  // [-1, 1)
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / (1 << 23) - 1.f;
}
template <class T> T* make(int64_t count) {
    T* memory = (T*)calloc(count, sizeof(T));
    if (!memory) abort();
    return memory;
}
float* floats(int64_t count, float middle, float spread) {
    float* made = make<float>(count);
    for (int64_t i = 0; i < count; i++) made[i] = middle + spread * noise();
    return made;
}
uint16_t upper_half(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}
int checked(int32_t result) {
    if (result < 0) {
        printf("refused: %s\n", vivavoce_refusal(result));
        exit(1);
    }
    return result;
}

Matrix matrix(int inputs, int outputs, Kind kind, bool biased = false) {
    const int padded = (outputs + BLOCK - 1) / BLOCK * BLOCK;
    const float spread = 1.7f / sqrtf((float)inputs);
    Matrix made = {nullptr, nullptr, nullptr, inputs, outputs, kind, kind == INT8 ? 8 : kind == INT11 ? 4 : 0};
    auto outputs_of = [&](int block) { return outputs - block * BLOCK < BLOCK ? outputs - block * BLOCK : (int)BLOCK; };
    if (kind == FLOAT32) {
        float* weights = make<float>((int64_t)inputs * padded);
        for (int b = 0; b < padded / BLOCK; b++)
            for (int i = 0; i < inputs; i++)
                for (int j = 0; j < outputs_of(b); j++) weights[((int64_t)b * inputs + i) * BLOCK + j] = spread * noise();
        made.weights = weights;
    } else if (kind == BFLOAT16) {
        uint16_t* weights = make<uint16_t>((int64_t)inputs * padded);
        for (int b = 0; b < padded / BLOCK; b++)
            for (int i = 0; i < inputs; i++)
                for (int j = 0; j < outputs_of(b); j++)
                    weights[((int64_t)b * inputs + i) * BLOCK + j % 16 * 2 + j / 16] = upper_half(spread * noise());
        made.weights = weights;
    } else {
        int8_t* bytes = make<int8_t>(kind == INT8 ? (int64_t)inputs * padded : 0);
        int16_t* words = make<int16_t>(kind == INT11 ? (int64_t)inputs * padded : 0);
        for (int b = 0; b < padded / BLOCK; b++)
            for (int i = 0; i < inputs; i++)
                for (int j = 0; j < outputs_of(b); j++) {
                    const int64_t at = ((int64_t)b * inputs + i / 2 * 2) * BLOCK + 2 * j + i % 2;
                    if (kind == INT8) bytes[at] = (int8_t)(127 * noise());
                    else words[at] = (int16_t)(1023 * noise());
                }
        made.weights = kind == INT8 ? (void*)bytes : (void*)words;
        const float largest = kind == INT8 ? 127 : 1023;
        made.scales = floats((int64_t)inputs / made.block * padded, spread / largest, spread / largest / 4);
    }
    if (biased) {
        float* bias = make<float>(padded);
        for (int j = 0; j < outputs; j++) bias[j] = 0.1f * noise();
        made.bias = bias;
    }
    return made;
}
Table table(int rows, int width, Kind kind, float spread) {
    Table made = {nullptr, rows, width, kind};
    if (kind == FLOAT32) {
        made.weights = floats((int64_t)rows * width, 0, spread);
    } else {
        uint16_t* weights = make<uint16_t>((int64_t)rows * width);
        for (int64_t i = 0; i < (int64_t)rows * width; i++) weights[i] = upper_half(spread * noise());
        made.weights = weights;
    }
    return made;
}
Stack stack(int layers, int hidden, Kind kind, bool of_codec) {
    Layer* made = make<Layer>(layers);
    for (int i = 0; i < layers; i++) {
        made[i].qkv = matrix(hidden, (HEADS + 2 * KV_HEADS) * HEAD_DIM, kind);
        made[i].out = matrix(HEADS * HEAD_DIM, hidden, kind);
        made[i].gate_up = matrix(hidden, 2 * INNER, kind);
        made[i].down = matrix(INNER, hidden, kind);
        made[i].norm_1 = floats(hidden, 1, 0.2f);
        made[i].norm_2 = floats(hidden, 1, 0.2f);
        made[i].qk_norm = of_codec ? nullptr : floats((HEADS + KV_HEADS) * HEAD_DIM, 1, 0.2f);
        made[i].scale_1 = of_codec ? floats(hidden, 0.1f, 0.05f) : nullptr;
        made[i].scale_2 = of_codec ? floats(hidden, 0.1f, 0.05f) : nullptr;
    }
    float* frequencies = make<float>(HEAD_DIM / 2);
    for (int i = 0; i < HEAD_DIM / 2; i++) frequencies[i] = powf(10000.f, -2.f * (float)i / HEAD_DIM);
    return {made, floats(hidden, 1, 0.2f), frequencies, layers, hidden, INNER, HEADS, KV_HEADS, HEAD_DIM,
            of_codec ? 0 : (int)POSITIONS, 1e-6f};
}
Talker talker(Kind kind) {
    Table* later = make<Table>(GROUPS - 1);
    Kind plain = kind == BFLOAT16 ? BFLOAT16 : FLOAT32;
    for (int g = 0; g < GROUPS - 1; g++) later[g] = table(CODES, HIDDEN, plain, 0.5f);
    return {stack(3, HIDDEN, kind, false), matrix(HIDDEN, VOCABULARY, kind), table(TEXT, HIDDEN, plain, 1),
            table(VOCABULARY, HIDDEN, plain, 1), later, GROUPS, END, CONTROL, 7, 1, 2};
}
Predictor predictor(Kind kind) {
    const int hidden = 32;
    Matrix* heads = make<Matrix>(GROUPS - 1);
    Table* inputs = make<Table>(GROUPS - 1);
    for (int g = 0; g < GROUPS - 1; g++) {
        heads[g] = matrix(hidden, CODES, kind);
        inputs[g] = table(g ? CODES : VOCABULARY, hidden, kind == BFLOAT16 ? BFLOAT16 : FLOAT32, 1);
    }
    return {stack(2, hidden, kind, false), matrix(HIDDEN, hidden, kind, true), heads, inputs, GROUPS, 1};
}

Conv conv(Kind kind, int taps, int dilation, int inputs, int outputs) {
    return {matrix(taps * inputs, outputs, kind, true), taps, dilation, inputs, outputs};
}
Snake snake(int channels) { return {floats(channels, 1, 0.5f), floats(channels, 0.5f, 0.3f)}; }
Codec codec(Kind kind) {
    static const int rates[] = {4, 3}, channels[] = {28, 20, 12};
    Table* books = make<Table>(GROUPS);
    for (int g = 0; g < GROUPS; g++) books[g] = table(CODES, CODEBOOK_DIM / 2, FLOAT32, 1);
    Latent* latents = make<Latent>(1);
    latents[0] = {conv(kind, 1, 1, LATENT_DIM, 2 * LATENT_DIM), 2, LATENT_DIM, floats(7 * LATENT_DIM, 0, 0.4f),
                  floats(LATENT_DIM, 0, 0.1f), floats(LATENT_DIM, 1, 0.2f), floats(LATENT_DIM, 0, 0.1f),
                  floats(LATENT_DIM, 0.3f, 0.1f), matrix(LATENT_DIM, 4 * LATENT_DIM, kind, true),
                  matrix(4 * LATENT_DIM, LATENT_DIM, kind, true)};
    Upsampling* blocks = make<Upsampling>(2);
    for (int b = 0; b < 2; b++) {
        const int width = channels[b + 1];
        blocks[b].snake = snake(channels[b]);
        blocks[b].conv = conv(kind, 2, 1, channels[b], rates[b] * width);
        blocks[b].rate = rates[b];
        blocks[b].channels = width;
        for (int u = 0, dilation = 1; u < 3; u++, dilation *= 3)
            blocks[b].units[u] = {snake(width), snake(width), conv(kind, 7, dilation, width, width),
                                  conv(kind, 1, 1, width, width)};
    }
    return {books, matrix(CODEBOOK_DIM / 2, CODEBOOK_DIM, kind), matrix(CODEBOOK_DIM / 2, CODEBOOK_DIM, kind),
            conv(kind, 3, 1, CODEBOOK_DIM, LATENT_DIM), matrix(LATENT_DIM, HIDDEN, kind, true),
            matrix(HIDDEN, LATENT_DIM, kind, true), stack(2, HIDDEN, kind, true), latents,
            conv(kind, 7, 1, LATENT_DIM, channels[0]), blocks, snake(channels[2]), floats(7 * channels[2], 0, 0.01f),
            0.01f, GROUPS, 1, WINDOW, 1, 2, channels[2], 2 * rates[0] * rates[1], 4};
}

Rows rows(const Talker& t, const Predictor& p) {
    auto cache = [](const Stack& s) { return make<float>((int64_t)ROWS * s.count * s.positions * s.kv_heads * s.head_dim); };
    Rows made = {cache(t.stack), cache(t.stack), cache(p.stack), cache(p.stack), make<float>(ROWS * HIDDEN), make<int64_t>(ROWS),
                 make<int32_t>(ROWS), make<int32_t>(ROWS * TOKENS), make<int32_t>(ROWS), make<int32_t>(ROWS),
                 make<int32_t>(ROWS * RING * GROUPS), make<uint8_t>(ROWS * VOCABULARY), make<Sampling>(ROWS),
                 make<Sampling>(ROWS), ROWS, RING, TOKENS};
    for (int row = 0; row < ROWS; row++) {
        made.seed[row] = 1234 + row;
        made.trailing_count[row] = TOKENS;
        for (int i = 0; i < TOKENS; i++) made.trailing[row * TOKENS + i] = (row * 31 + i * 7) % TEXT;
        made.min_frames[row] = FRAMES;
        // The first row takes the likeliest codes, the second one draws.
        made.talker_sampling[row] = row ? Sampling{0.9f, 0.95f, 1.1f, 20} : Sampling{0, 1, 1, 0};
        made.predictor_sampling[row] = row ? Sampling{0.8f, 1, 1, 10} : Sampling{0, 1, 1, 0};
    }
    return made;
}
// Writes the codes [FRAMES][GROUPS] of each row, and prints them and the scores of the alignment's head.
void speak(Kind kind, Pool* pool, int32_t codes[ROWS][FRAMES * GROUPS]) {
    const Talker t = talker(kind);
    const Predictor p = predictor(kind);
    Rows state = rows(t, p);
    int32_t numbers[ROWS], frames[ROWS], positions[ROWS], windows[ROWS];
    for (int row = 0; row < ROWS; row++) {
        const int tokens = TOKENS - row * 4;
        float* prompt = floats((int64_t)tokens * HIDDEN, 0, 1);
        float* scratch = make<float>(checked((int)vivavoce_start_scratch(&t, tokens)));
        checked(vivavoce_start(&t, &state, pool, row, tokens, prompt, scratch));
        free(scratch);
        free(prompt);
        numbers[row] = row;
        positions[row] = tokens;
        windows[row] = row ? -1 : 3;
    }
    float* scratch = make<float>(checked((int)vivavoce_frame_scratch(&t, &p, ROWS)));
    float* scores = make<float>(ROWS * SCORES);
    uint8_t ended[ROWS];
    for (int frame = 0; frame < FRAMES; frame++) {
        for (int row = 0; row < ROWS; row++) frames[row] = frame;
        checked(vivavoce_frame(&t, &p, &state, pool, ROWS, numbers, frames, positions, windows, scores, ended, scratch));
        for (int row = 0; row < ROWS; row++) {
            const int32_t* made = state.codes + (row * RING + frame % RING) * GROUPS;
            memcpy(codes[row] + frame * GROUPS, made, GROUPS * sizeof *made);
            positions[row]++;
            printf("codes");
            for (int g = 0; g < GROUPS; g++) printf(" %d", (int)made[g]);
            printf("\n");
        }
        printf("%s %.9g\n", kind >= INT8 ? "whole_score" : "score", (double)scores[0]);
    }
    free(scratch);
}
// Decodes a row's codes in pieces of 1, 2, 5 and 11 frames, and prints the samples.
void decode(const Codec& c, Pool* pool, const int32_t* codes) {
    float* state = make<float>(checked((int)vivavoce_code2wav_state(&c)));
    static const int pieces[] = {1, 2, 5, 11};
    const char* word = c.head.matrix.kind >= INT8 ? "whole_sample" : "sample";
    int64_t position = 0;
    for (int frames : pieces) {
        float* audio = make<float>((int64_t)frames * c.samples_per_frame);
        float* scratch = make<float>(checked((int)vivavoce_code2wav_scratch(&c, frames)));
        checked(vivavoce_code2wav(&c, pool, state, position, frames, GROUPS, codes + position * GROUPS, audio, scratch));
        for (int i = 0; i < frames * c.samples_per_frame; i++) printf("%s %.9g\n", word, (double)audio[i]);
        position += frames;
        free(audio);
        free(scratch);
    }
}

}  // namespace

int main() {
    Pool* pool = vivavoce_pool(2);
    const Codec plain = codec(FLOAT32), whole = codec(INT11);
    int32_t codes[ROWS][FRAMES * GROUPS];
    for (int kind = FLOAT32; kind <= INT11; kind++) {
        speak((Kind)kind, kind == BFLOAT16 ? pool : nullptr, codes);
        for (int row = 0; row < ROWS; row++) decode(kind < INT8 ? plain : whole, row ? pool : nullptr, codes[row]);
    }
    vivavoce_pool_end(pool);
    return 0;
}
