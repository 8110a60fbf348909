// The C interface of the CPU's kernels: what Python hands over through ctypes, and what comes back. Python's twin of
// each struct is in cpu/library.py. Every pointer is to contiguous memory that outlives the call. Python has checked
// each shape; the functions check the cheap part again, and return a negative number if they refuse (vivavoce_refusal
// names it).
#pragma once
#include <stdint.h>

#define VIVAVOCE_INTERFACE 3
enum Kind : int32_t { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2, INT11 = 3 };
enum { BLOCK = 32 };  // outputs of a block of packed weights

extern "C" {
// [inputs, outputs] packed as [ceil(outputs / 32)][inputs][32], the last block filled up with zeros. FLOAT32: floats.
// BFLOAT16: 16 words of 32 bits, whose low half is output j and whose high half is output j + 16. INT8 and INT11:
// [ceil(outputs / 32)][inputs / 2][32][2], bytes, or words of 16 bits from -1023 to 1023, with scales
// [inputs / block][ceil(outputs / 32) * 32], block even and at most 64. bias: [ceil(outputs / 32) * 32] or null.
// A convolution is a matrix of taps * channels inputs, the oldest tap first.
struct Matrix {
    const void* weights;
    const float *scales, *bias;
    int32_t inputs, outputs;
    Kind kind;
    int32_t block;
};
// [rows, width], row by row: FLOAT32 or BFLOAT16 (plain order). An embedding or a codebook.
struct Table { const void* weights; int32_t rows, width; Kind kind; };
// qk_norm [heads + kv_heads][head_dim] or null; scale_1 and scale_2 [hidden] or null (Code2Wav's residual scales).
struct Layer { Matrix qkv, out, gate_up, down; const float *norm_1, *norm_2, *qk_norm, *scale_1, *scale_2; };
// frequencies [head_dim / 2]; positions: length of a row's cache [count][positions][kv_heads * head_dim].
struct Stack {
    const Layer* layers;
    const float *norm, *frequencies;
    int32_t count, hidden, inner, heads, kv_heads, head_dim, positions;
    float epsilon;
};

// later [groups - 1]: embeddings of the later codes in the talker's width. Codes from first_control on are forbidden
// but for end_code. alignment_layer -1: no head follows the text.
struct Talker {
    Stack stack;
    Matrix head;
    Table text, codec;
    const Table* later;
    int32_t groups, end_code, first_control, pad_id, alignment_layer, alignment_head;
};
// inputs [groups - 1], heads [groups - 1]; projection counts if has_projection.
struct Predictor {
    Stack stack;
    Matrix projection;
    const Matrix* heads;
    const Table* inputs;
    int32_t groups, has_projection;
};
struct Sampling { float temperature, top_p, penalty; int32_t top_k; };

// The state of all rows; arrays by row. Caches: [rows][layers][positions][kv_heads * head_dim]. hidden [rows][hidden];
// trailing [rows][trailing_length]; seen [rows][vocabulary of code 0]; codes [rows][ring][groups], frame f at f % ring.
struct Rows {
    float *talker_keys, *talker_values, *frame_keys, *frame_values, *hidden;
    int64_t* seed;
    int32_t *code_0, *trailing, *trailing_count, *min_frames, *codes;
    uint8_t* seen;
    Sampling *talker_sampling, *predictor_sampling;
    int32_t rows, ring, trailing_length;
};

// Code2Wav. A row's state: every convolution's last inputs, the window's keys and values, and nothing else.
struct Snake { const float *frequency, *magnitude; };
struct Conv { Matrix matrix; int32_t taps, dilation, inputs, outputs; };
struct Unit { Snake snake_1, snake_2; Conv conv_1, conv_2; };
struct Upsampling { Snake snake; Conv conv; int32_t rate, channels; Unit units[3]; };
struct Latent {
    Conv conv;
    int32_t ratio, channels;
    const float *depthwise, *depthwise_bias, *norm, *norm_bias, *gamma;
    Matrix wide, narrow;
};
struct Codec {
    const Table* codebooks;
    Matrix semantic, acoustic;
    Conv pre;
    Matrix input, output;
    Stack stack;
    const Latent* latents;
    Conv head;
    const Upsampling* blocks;
    Snake snake;
    const float* mono;  // [7][channels]
    float mono_bias;
    int32_t codebook_count, semantic_count, window, latent_count, block_count, channels;
    int32_t samples_per_frame, memory_frames;
};

// cpu/library.py has the same sizes.
static_assert(sizeof(Matrix) == 40, "Matrix");
static_assert(sizeof(Table) == 24, "Table");
static_assert(sizeof(Layer) == 200, "Layer");
static_assert(sizeof(Stack) == 56, "Stack");
static_assert(sizeof(Talker) == 176, "Talker");
static_assert(sizeof(Predictor) == 120, "Predictor");
static_assert(sizeof(Sampling) == 16, "Sampling");
static_assert(sizeof(Rows) == 128, "Rows");
static_assert(sizeof(Snake) == 16, "Snake");
static_assert(sizeof(Conv) == 56, "Conv");
static_assert(sizeof(Unit) == 144, "Unit");
static_assert(sizeof(Upsampling) == 512, "Upsampling");
static_assert(sizeof(Latent) == 184, "Latent");
static_assert(sizeof(Codec) == 416, "Codec");

struct Pool;

int32_t vivavoce_interface(void);  // VIVAVOCE_INTERFACE of the build
const char* vivavoce_isa(void);    // avx512, avx2, neon or portable
const char* vivavoce_refusal(int32_t result);
Pool* vivavoce_pool(int32_t threads);  // threads >= 1, the caller counts as one; a null Pool is one thread
void vivavoce_pool_end(Pool* pool);

// ---- the talker and the code predictor
// Runs a prompt x [tokens][hidden], which it overwrites, at positions 0 to tokens - 1 of a row; stores its last hidden
// state, and draws code 0 of frame 0.
int64_t vivavoce_start_scratch(const Talker* talker, int32_t tokens);  // floats
int32_t vivavoce_start(const Talker* talker, const Rows* state, Pool* pool, int32_t row, int32_t tokens, float* x,
                       float* scratch);
// Teacher forcing: runs x [tokens][hidden] at positions 0 to tokens - 1 of a cache of its own, keys and values
// [layers][positions][kv_heads * head_dim], and leaves every token's hidden state in x. Needs vivavoce_start_scratch.
int32_t vivavoce_force(const Talker* talker, Pool* pool, float* keys, float* values, int32_t tokens, float* x,
                       float* scratch);
// Completes frame frames[i] of rows[i] for each i < count: code predictor, the sum of the code embeddings and the next
// text embedding, talker at positions[i], code 0 of the next frame. ended[i]: that code is the end. windows[i] >= 0:
// scores[i][32] gets q.k / sqrt(head_dim) of the alignment's head for the positions windows[i] to windows[i] + 31, -inf
// behind the query.
int64_t vivavoce_frame_scratch(const Talker* talker, const Predictor* predictor, int32_t count);
int32_t vivavoce_frame(const Talker* talker, const Predictor* predictor, const Rows* state, Pool* pool, int32_t count,
                       const int32_t* rows, const int32_t* frames, const int32_t* positions, const int32_t* windows,
                       float* scores, uint8_t* ended, float* scratch);

// ---- Code2Wav
// Moves a row's state [vivavoce_code2wav_state floats, zeros at first] on by codes [frames][groups] at position (frames
// decoded before). audio [frames * samples_per_frame], or null: the latents alone are moved on, for frames of a
// reference that are further back than the convolutions behind them remember (memory_frames).
int64_t vivavoce_code2wav_state(const Codec* codec);
int64_t vivavoce_code2wav_scratch(const Codec* codec, int32_t frames);
int32_t vivavoce_code2wav(const Codec* codec, Pool* pool, float* state, int64_t position, int32_t frames,
                          int32_t groups, const int32_t* codes, float* audio, float* scratch);

// ---- for tests: single steps of the above
// out [rows][outputs] (row stride out_stride) = x of taps (rows of stride x_stride, taps tap_step floats apart) *
// matrix + bias + onto, which may be null or out.
int32_t vivavoce_product(const Matrix* matrix, Pool* pool, const float* x, int64_t x_stride, int32_t rows, int32_t taps,
                         int64_t tap_step, const float* onto, float* out, int64_t out_stride);
// Draws from logits [count], which it overwrites, with noise in [0, 1).
int32_t vivavoce_draw(float* logits, int32_t count, const Sampling* sampling, float noise);
float vivavoce_uniform(int64_t seed, int64_t frame, int32_t codebook);
}
