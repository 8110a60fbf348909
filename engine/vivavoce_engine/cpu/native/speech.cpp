// The talker and the code predictor: prompts, frames, and the draws of codes. The twin in PyTorch is in
// models/talker.py, models/code_predictor.py and cpu/sampling.py; a frame's steps are in the order of cpu/runner.py.
#include "kernels.h"

// ---- tables
template <class Put> INLINE void by_entry(const Table& table, int32_t id, Put put) {
    int64_t row = id < 0 ? 0 : id >= table.rows ? table.rows - 1 : id;
    if (table.kind == FLOAT32) {
        const float* from = (const float*)table.weights + row * table.width;
        for (int i = 0; i < table.width; i++) put(i, from[i]);
    } else {
        const uint16_t* from = (const uint16_t*)table.weights + row * table.width;
        for (int i = 0; i < table.width; i++) {
            uint32_t bits = (uint32_t)from[i] << 16;
            float value;
            memcpy(&value, &bits, sizeof value);
            put(i, value);
        }
    }
}
static void look_up(const Table& table, int32_t id, float* out) {
    by_entry(table, id, [&](int i, float value) { out[i] = value; });
}
static void add_entry(const Table& table, int32_t id, float* out) {
    by_entry(table, id, [&](int i, float value) { out[i] += value; });
}

// ---- random numbers: a function of seed, frame and codebook alone
enum { CODEBOOKS_MAX = 64, RANDOM_BITS = 24 };
static uint64_t mix(uint64_t x) {  // the finaliser of SplitMix64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}
static float uniform(int64_t seed, int64_t frame, int codebook) {
    uint64_t counter = (uint64_t)frame * CODEBOOKS_MAX + (uint64_t)codebook + 1;
    uint64_t bits = mix(mix((uint64_t)seed) + counter * 0x9E3779B97F4A7C15ull) >> (64 - RANDOM_BITS);
    return (float)bits / (1 << RANDOM_BITS);
}

// ---- draws
// The codes that may still be drawn, with their logits. draw() needs room for a whole vocabulary.
struct Candidate { float logit; int32_t code; };

static int first_of_highest(const float* x, int n) {
    float top = highest(x, n);
    for (int i = 0; i < n; i++)
        if (x[i] == top) return i;
    return 0;  // NaN
}
static int count_from(const float* x, int n, float threshold) {
    vi counts = {};
    int i = 0;
    for (; i + VW <= n; i += VW) counts -= (vi)(ld(x + i) >= all(threshold));
    int count = 0;
    for (int lane = 0; lane < VW; lane++) count += counts[lane];
    for (; i < n; i++) count += x[i] >= threshold;
    return count;
}
// A threshold that leaves the k highest of x, and all that equal the k-th. Bisects the floats in their order as
// integers.
static float threshold_of(const float* x, int n, int k) {
    auto at = [](uint32_t order) {
        uint32_t bits = order & 0x80000000u ? order & 0x7fffffffu : ~order;
        float value;
        memcpy(&value, &bits, sizeof value);
        return value;
    };
    uint32_t low = 0, high = 0xffffffffu;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2 + 1;
        int count = count_from(x, n, at(middle));
        if (count == k) return at(middle);
        if (count > k) low = middle;
        else high = middle - 1;
    }
    return at(low);
}
static int by_logit(const void* a, const void* b) {
    const Candidate *p = (const Candidate*)a, *q = (const Candidate*)b;
    return p->logit != q->logit ? (p->logit < q->logit ? -1 : 1) : p->code - q->code;
}
static int by_code(const void* a, const void* b) { return ((const Candidate*)a)->code - ((const Candidate*)b)->code; }

// Replaces logits by probabilities, which it also returns the sum of. `spare` [count] is overwritten.
static void probabilities(Candidate* candidates, int count, float* spare) {
    for (int i = 0; i < count; i++) spare[i] = candidates[i].logit;
    float total = softmax(spare, count);
    for (int i = 0; i < count; i++) spare[i] /= total;
}
// Drops the least likely candidates whose probabilities sum to at most 1 - top_p; the most likely stays.
static int keep_top_p(Candidate* candidates, int count, float top_p, float* spare) {
    qsort(candidates, count, sizeof *candidates, by_logit);
    probabilities(candidates, count, spare);
    double sum = 0;
    int dropped = 0;
    while (dropped < count - 1 && (float)(sum += spare[dropped]) <= 1.f - top_p) dropped++;
    memmove(candidates, candidates + dropped, (count - dropped) * sizeof *candidates);
    qsort(candidates, count - dropped, sizeof *candidates, by_code);
    return count - dropped;
}
// Draws a code from logits x [n], which it overwrites: the first whose cumulative probability exceeds the noise.
static int draw(float* x, int n, const Sampling& sampling, float noise, Candidate* candidates) {
    if (sampling.temperature == 0) return first_of_highest(x, n);
    by_vector(n, [&](int i, int count) { st(x + i, ld(x + i, count) / all(sampling.temperature), count); });
    bool limited = sampling.top_k > 0 && sampling.top_k < n;
    float threshold = limited ? threshold_of(x, n, sampling.top_k) : -3e38f;
    threshold = threshold > -3e38f ? threshold : -3e38f;
    int count = 0;
    for (int i = 0; i < n; i++) {  // without a branch, which would often be guessed wrong
        candidates[count] = {x[i], i};
        count += x[i] >= threshold;
    }
    if (count == 0) return 0;  // NaN
    if (sampling.top_p < 1) count = keep_top_p(candidates, count, sampling.top_p, x);
    probabilities(candidates, count, x);
    double total = 0, sum = 0;
    for (int i = 0; i < count; i++) total += x[i];
    for (int i = 0; i < count - 1; i++)
        if ((sum += x[i]) > noise * total) return candidates[i].code;
    return candidates[count - 1].code;
}

// ---- scratch
// Hands out parts of the scratch. With null it counts alone: the same lines say how much is needed, and where all is.
struct Scratch {
    float* base;
    int64_t used;
    template <class T> T* take(int64_t count) {
        used = (used + 15) / 16 * 16;
        T* part = base ? (T*)(base + used) : nullptr;
        used += (count * (int64_t)sizeof(T) + 3) / 4;
        return part;
    }
    static Scratch of(float* given) {  // begins at a multiple of 64 bytes; `used` of null counts what is lost by that
        return given ? Scratch{(float*)(((uintptr_t)given + 63) & ~(uintptr_t)63), 0} : Scratch{nullptr, 16};
    }
};
struct Draws {  // for `rows` rows
    float* logits;
    Candidate* candidates;
    int vocabulary;
    Draws(Scratch& scratch, int rows, int vocabulary) : vocabulary(vocabulary) {
        logits = scratch.take<float>((int64_t)rows * vocabulary);
        candidates = scratch.take<Candidate>((int64_t)rows * vocabulary);
    }
};
enum { PROMPT_ROWS = 96 };  // tokens of a prompt that run at once, whole tiles
struct StartScratch {
    Place* places;
    Draws draws;
    float* rest;
    StartScratch(Scratch& s, const Talker& talker, int tokens)
        : places(s.take<Place>(smaller(tokens, PROMPT_ROWS))), draws(s, 1, talker.head.outputs),
          rest(s.take<float>(stack_scratch(talker.stack, smaller(tokens, PROMPT_ROWS)))) {}
};
static int widest(const Talker& talker, const Predictor& predictor) {
    int width = talker.head.outputs;
    for (int g = 0; g < predictor.groups - 1; g++) width = larger(width, predictor.heads[g].outputs);
    return width;
}
struct FrameScratch {
    Place* places;
    int32_t* codes;  // [count][groups]
    float *hidden, *x;
    Draws draws;
    float* rest;
    FrameScratch(Scratch& s, const Talker& talker, const Predictor& predictor, int count)
        : places(s.take<Place>(2 * count)), codes(s.take<int32_t>((int64_t)count * talker.groups)),
          hidden(s.take<float>((int64_t)count * talker.stack.hidden)),
          x(s.take<float>((int64_t)2 * count * predictor.stack.hidden)), draws(s, count, widest(talker, predictor)) {
        int64_t talking = stack_scratch(talker.stack, count), predicting = stack_scratch(predictor.stack, 2 * count);
        rest = s.take<float>(talking > predicting ? talking : predicting);
    }
};

// ---- a frame
INLINE Place place_in(const Stack& s, float* keys, float* values, int row, int position) {
    int64_t of_row = (int64_t)s.count * s.positions * s.kv_heads * s.head_dim;
    return {keys + row * of_row, values + row * of_row, position, 0, position};
}
// Draws code 0 of a row's frame from the talker's hidden state [hidden], and stores both.
static int draw_code_0(const Talker& talker, const Rows& state, int row, int frame, const float* hidden, float* logits,
                       Candidate* candidates) {
    const int vocabulary = talker.head.outputs;
    const Sampling& sampling = state.talker_sampling[row];
    uint8_t* seen = state.seen + (int64_t)row * vocabulary;
    if (sampling.penalty != 1)
        for (int i = 0; i < vocabulary; i++) {
            float penalised = logits[i] < 0 ? logits[i] * sampling.penalty : logits[i] / sampling.penalty;
            logits[i] = seen[i] ? penalised : logits[i];
        }
    const bool may_end = frame >= state.min_frames[row];
    for (int i = talker.first_control; i < vocabulary; i++)
        if (i != talker.end_code) logits[i] = -INFINITY;
    if (!may_end) logits[talker.end_code] = -INFINITY;
    int code = draw(logits, vocabulary, sampling, uniform(state.seed[row], frame, 0), candidates);
    memcpy(state.hidden + (int64_t)row * talker.stack.hidden, hidden, talker.stack.hidden * sizeof(float));
    state.code_0[row] = code;
    seen[code] = 1;
    return code;
}
struct Batch { int count; const int32_t *rows, *frames; };

// Codes 1 to groups - 1 of each row's frame, from the talker's hidden states and the codes 0.
static void predict(const Predictor& predictor, const Rows& state, Pool* pool, const Batch& batch, int talker_hidden,
                    const FrameScratch& s) {
    const Stack& stack_of = predictor.stack;
    const int count = batch.count, hidden = stack_of.hidden, groups = predictor.groups;
    auto place = [&](int i, int position) {
        return place_in(stack_of, state.frame_keys, state.frame_values, batch.rows[i], position);
    };
    for (int i = 0; i < count; i++) {  // the talker's hidden state and code 0 are positions 0 and 1
        const float* from = state.hidden + (int64_t)batch.rows[i] * talker_hidden;
        memcpy(predictor.has_projection ? s.hidden + (int64_t)i * talker_hidden : s.x + (int64_t)2 * i * hidden, from,
               talker_hidden * sizeof(float));
        s.codes[(int64_t)i * groups] = state.code_0[batch.rows[i]];
        look_up(predictor.inputs[0], state.code_0[batch.rows[i]], s.x + (int64_t)(2 * i + 1) * hidden);
        for (int j = 0; j < 2; j++) s.places[2 * i + j] = place(i, j);
    }
    if (predictor.has_projection)
        product(predictor.projection, pool, s.hidden, talker_hidden, count, 1, 0, nullptr, s.x, 2 * hidden, s.rest);
    stack(stack_of, pool, 2 * count, s.x, s.places, nullptr, s.rest, 2 * count);
    for (int i = 0; i < count; i++)
        memmove(s.x + (int64_t)i * hidden, s.x + (int64_t)(2 * i + 1) * hidden, hidden * sizeof(float));
    for (int group = 1;; group++) {
        const Matrix& head = predictor.heads[group - 1];
        product(head, pool, s.x, hidden, count, 1, 0, nullptr, s.draws.logits, s.draws.vocabulary, s.rest);
        by_row(pool, count, head.outputs, [&](int i) {
            int64_t at = (int64_t)i * s.draws.vocabulary;
            int row = batch.rows[i];
            float noise = uniform(state.seed[row], batch.frames[i], group);
            int code = draw(s.draws.logits + at, head.outputs, state.predictor_sampling[row], noise,
                            s.draws.candidates + at);
            s.codes[(int64_t)i * groups + group] = code;
        });
        if (group == groups - 1) return;
        for (int i = 0; i < count; i++) {
            look_up(predictor.inputs[group], s.codes[(int64_t)i * groups + group], s.x + (int64_t)i * hidden);
            s.places[i] = place(i, group + 1);
        }
        stack(stack_of, pool, count, s.x, s.places, nullptr, s.rest, count);
    }
}
// The talker's input of a row's frame: the sum of its codes' embeddings, and the next text id's.
static void embed_frame(const Talker& talker, const Rows& state, int row, int frame, const int32_t* codes, float* x) {
    look_up(talker.codec, codes[0], x);
    for (int g = 1; g < talker.groups; g++) add_entry(talker.later[g - 1], codes[g], x);
    bool given = frame < state.trailing_count[row] && frame < state.trailing_length;
    add_entry(talker.text, given ? state.trailing[(int64_t)row * state.trailing_length + frame] : talker.pad_id, x);
}

// ---- what is refused
static bool fits(const Matrix& m, int inputs, int outputs) {
    return m.weights && m.inputs == inputs && m.outputs == outputs && fits_taps(m, 1);
}
static bool fits(const Table& t, int width) {
    return t.weights && t.rows >= 1 && t.width == width && (t.kind == FLOAT32 || t.kind == BFLOAT16);
}
static bool fits(const Stack& s) {
    bool all_fit = s.layers && s.count >= 1 && s.hidden >= 1 && s.inner >= 1 && s.heads >= 1 && s.kv_heads >= 1 &&
                   s.heads % s.kv_heads == 0 && s.head_dim >= 2 && s.head_dim % 2 == 0 && s.positions >= 1;
    for (int i = 0; all_fit && i < s.count; i++) {
        const Layer& l = s.layers[i];
        all_fit = fits(l.qkv, s.hidden, (s.heads + 2 * s.kv_heads) * s.head_dim) && l.norm_1 && l.norm_2 &&
                  fits(l.out, s.heads * s.head_dim, s.hidden) && fits(l.gate_up, s.hidden, 2 * s.inner) &&
                  fits(l.down, s.inner, s.hidden);
    }
    return all_fit;
}
static bool fits(const Talker& t) {
    const int hidden = t.stack.hidden;
    bool all_fit = fits(t.stack) && t.groups >= 2 && t.groups <= CODEBOOKS_MAX && t.head.outputs >= 1 &&
                   fits(t.head, hidden, t.head.outputs) && t.first_control >= 0 && t.end_code >= 0 &&
                   t.end_code < t.head.outputs && fits(t.text, hidden) && fits(t.codec, hidden) && t.later &&
                   t.alignment_layer < t.stack.count &&
                   (t.alignment_layer < 0 || (t.alignment_head >= 0 && t.alignment_head < t.stack.heads));
    for (int g = 0; all_fit && g < t.groups - 1; g++) all_fit = fits(t.later[g], hidden);
    return all_fit;
}
static bool fits(const Predictor& p, const Talker& t) {
    const int hidden = p.stack.hidden;
    bool all_fit = fits(p.stack) && p.groups == t.groups && p.stack.positions >= p.groups && p.heads && p.inputs &&
                   (p.has_projection ? fits(p.projection, t.stack.hidden, hidden) : hidden == t.stack.hidden);
    for (int g = 0; all_fit && g < p.groups - 1; g++)
        all_fit = p.heads[g].outputs >= 1 && fits(p.heads[g], hidden, p.heads[g].outputs) && fits(p.inputs[g], hidden);
    return all_fit;
}
static int32_t why_not(const Talker& talker, const Rows& state, const Batch& batch, const int32_t* positions) {
    if (batch.count < 1) return REFUSED_COUNT;
    for (int i = 0; i < batch.count; i++) {
        if (batch.rows[i] < 0 || batch.rows[i] >= state.rows) return REFUSED_ROW;
        if (positions[i] < 0 || positions[i] >= talker.stack.positions) return REFUSED_POSITION;
        if (batch.frames[i] < 0) return REFUSED_FRAME;
        for (int j = 0; j < i; j++)
            if (batch.rows[j] == batch.rows[i]) return REFUSED_TWICE;
    }
    return 0;
}

// ---- the interface
extern "C" {
int32_t vivavoce_interface(void) { return VIVAVOCE_INTERFACE; }
const char* vivavoce_isa(void) { return VIVAVOCE_ISA; }
const char* vivavoce_refusal(int32_t result) {
    switch (result) {
        case REFUSED_SHAPE: return "a shape does not fit";
        case REFUSED_ROW: return "a row is outside the table";
        case REFUSED_POSITION: return "a position is outside the cache";
        case REFUSED_FRAME: return "a frame number is negative";
        case REFUSED_TWICE: return "a row comes twice";
        case REFUSED_COUNT: return "there is nothing to do";
        default: return "an unknown refusal";
    }
}
Pool* vivavoce_pool(int32_t threads) { return pool_make(threads); }
void vivavoce_pool_end(Pool* pool) { pool_end(pool); }

int64_t vivavoce_start_scratch(const Talker* talker, int32_t tokens) {
    if (tokens < 1 || !fits(*talker)) return REFUSED_SHAPE;
    Scratch scratch = Scratch::of(nullptr);
    StartScratch(scratch, *talker, tokens);
    return scratch.used;
}
int32_t vivavoce_start(const Talker* talker, const Rows* state, Pool* pool, int32_t row, int32_t tokens, float* x,
                       float* scratch) {
    if (!fits(*talker)) return REFUSED_SHAPE;
    if (tokens < 1) return REFUSED_COUNT;
    if (row < 0 || row >= state->rows) return REFUSED_ROW;
    if (tokens > talker->stack.positions) return REFUSED_POSITION;
    Scratch from = Scratch::of(scratch);
    StartScratch s(from, *talker, tokens);
    const int64_t hidden = talker->stack.hidden;
    for (int first = 0; first < tokens; first += PROMPT_ROWS) {
        int some = smaller(PROMPT_ROWS, tokens - first);
        for (int i = 0; i < some; i++)
            s.places[i] = place_in(talker->stack, state->talker_keys, state->talker_values, row, first + i);
        const int wanted = first + some == tokens;  // the last token's hidden state alone
        stack(talker->stack, pool, some, x + first * hidden, s.places, nullptr, s.rest, wanted);
    }
    const float* last = x + (tokens - 1) * hidden;
    product(talker->head, pool, last, hidden, 1, 1, 0, nullptr, s.draws.logits, talker->head.outputs, s.rest);
    draw_code_0(*talker, *state, row, 0, last, s.draws.logits, s.draws.candidates);
    return 0;
}
int32_t vivavoce_force(const Talker* talker, Pool* pool, float* keys, float* values, int32_t tokens, float* x,
                       float* scratch) {
    if (!fits(*talker)) return REFUSED_SHAPE;
    if (tokens < 1) return REFUSED_COUNT;
    if (tokens > talker->stack.positions) return REFUSED_POSITION;
    Scratch from = Scratch::of(scratch);
    StartScratch s(from, *talker, tokens);
    for (int first = 0; first < tokens; first += PROMPT_ROWS) {
        int some = smaller(PROMPT_ROWS, tokens - first);
        for (int i = 0; i < some; i++) s.places[i] = place_in(talker->stack, keys, values, 0, first + i);
        stack(talker->stack, pool, some, x + (int64_t)first * talker->stack.hidden, s.places, nullptr, s.rest, some);
    }
    return 0;
}
int64_t vivavoce_frame_scratch(const Talker* talker, const Predictor* predictor, int32_t count) {
    if (count < 1 || !fits(*talker) || !fits(*predictor, *talker)) return REFUSED_SHAPE;
    Scratch scratch = Scratch::of(nullptr);
    FrameScratch(scratch, *talker, *predictor, count);
    return scratch.used;
}
int32_t vivavoce_frame(const Talker* talker, const Predictor* predictor, const Rows* state, Pool* pool, int32_t count,
                       const int32_t* rows, const int32_t* frames, const int32_t* positions, const int32_t* windows,
                       float* scores, uint8_t* ended, float* scratch) {
    if (!fits(*talker) || !fits(*predictor, *talker)) return REFUSED_SHAPE;
    const Batch batch = {count, rows, frames};
    if (int32_t refused = why_not(*talker, *state, batch, positions)) return refused;
    Scratch from = Scratch::of(scratch);
    const FrameScratch s(from, *talker, *predictor, count);
    const int hidden = talker->stack.hidden, groups = talker->groups;
    predict(*predictor, *state, pool, batch, hidden, s);
    for (int i = 0; i < count; i++) {
        const int32_t* codes = s.codes + (int64_t)i * groups;
        int64_t at = (int64_t)rows[i] * state->ring + frames[i] % state->ring;
        memcpy(state->codes + at * groups, codes, groups * sizeof *codes);
        embed_frame(*talker, *state, rows[i], frames[i], codes, s.hidden + (int64_t)i * hidden);
        s.places[i] = place_in(talker->stack, state->talker_keys, state->talker_values, rows[i], positions[i]);
    }
    const Scores told = {talker->alignment_layer, talker->alignment_head, windows, scores};
    const bool tells = windows && scores && talker->alignment_layer >= 0;
    stack(talker->stack, pool, count, s.hidden, s.places, tells ? &told : nullptr, s.rest, count);
    product(talker->head, pool, s.hidden, hidden, count, 1, 0, nullptr, s.draws.logits, s.draws.vocabulary, s.rest);
    by_row(pool, count, talker->head.outputs, [&](int i) {
        int64_t at = (int64_t)i * s.draws.vocabulary;
        int code = draw_code_0(*talker, *state, rows[i], frames[i] + 1, s.hidden + (int64_t)i * hidden,
                               s.draws.logits + at, s.draws.candidates + at);
        ended[i] = code == talker->end_code;
    });
    return 0;
}

int32_t vivavoce_product(const Matrix* matrix, Pool* pool, const float* x, int64_t x_stride, int32_t rows, int32_t taps,
                         int64_t tap_step, const float* onto, float* out, int64_t out_stride) {
    if (rows < 1 || !fits_taps(*matrix, taps)) return REFUSED_SHAPE;
    const int per_tap = matrix->inputs / taps;
    if (taps > 1 && is_whole_kind(*matrix) && (x_stride != per_tap || tap_step % per_tap)) return REFUSED_SHAPE;
    float* spare = nullptr;
    if (is_whole_kind(*matrix)) {
        const int64_t inputs = rows + (taps - 1) * (tap_step / per_tap);
        spare = (float*)malloc(whole_floats(inputs, per_tap) * sizeof(float));
        if (!spare) return REFUSED_COUNT;
    }
    product(*matrix, pool, x, x_stride, rows, taps, tap_step, onto, out, out_stride, spare);
    free(spare);
    return 0;
}
int32_t vivavoce_draw(float* logits, int32_t count, const Sampling* sampling, float noise) {
    if (count < 1) return REFUSED_COUNT;
    Candidate* candidates = (Candidate*)malloc(count * sizeof(Candidate));
    if (!candidates) return REFUSED_COUNT;
    int code = draw(logits, count, *sampling, noise, candidates);
    free(candidates);
    return code;
}
float vivavoce_uniform(int64_t seed, int64_t frame, int32_t codebook) { return uniform(seed, frame, codebook); }
}
