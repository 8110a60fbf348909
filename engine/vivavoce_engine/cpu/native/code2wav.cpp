// Code2Wav: codec frames → 24 kHz audio. Every layer is causal, so a row's state is the last inputs of each of them,
// and pieces of any length join to the bits of the whole. The module it computes: models/codec_decoder.py.
#include "kernels.h"

namespace {

enum {
    KERNEL = 7,                // taps of the depthwise and the mono convolution
    FRAMES_AT_ONCE = 8,        // frames of one pass: scratch is for this many
    SPARE_POSITIONS = 16,      // the attention's window moves down in its cache once in this many frames
    FLOATS_AT_ONCE = 1 << 16,  // outputs of a block that a core's cache keeps until the blocks behind it read them
};
constexpr float NORM_EPSILON = 1e-6f;  // of the ConvNeXt blocks
static_assert(FRAMES_AT_ONCE <= SPARE_POSITIONS, "a pass has its places in the cache");

// Hands out memory from its front.
struct Cursor {
    float* next;
    float* take(int64_t floats) { float* start = next; next += floats; return start; }
};

// joined: a layer's last inputs with the new ones behind them. spare: what lives within one layer or unit. whole: a
// product's inputs as whole numbers.
struct Work { Pool* pool; float *joined, *spare, *whole; };

// ---- sizes

inline int history(const Conv& conv) { return (conv.taps - 1) * conv.dilation; }
inline int64_t state_of(const Conv& conv) { return (int64_t)history(conv) * conv.inputs; }
inline int64_t state_of_channels(int channels) { return (int64_t)(KERNEL - 1) * channels; }
// The transformer on a cache of the window and some spare places.
inline Stack stack_of(const Codec& codec) {
    Stack stack = codec.stack;
    stack.positions = codec.window - 1 + SPARE_POSITIONS;
    return stack;
}
inline int64_t cache_size(const Stack& stack) {
    return (int64_t)stack.count * stack.positions * stack.kv_heads * stack.head_dim;
}

// Floats of each part of the scratch, for passes of as many frames.
struct ScratchSizes { int64_t joined, spare, whole, latents, blocks; };

ScratchSizes scratch_sizes(const Codec& codec, int frames) {
    ScratchSizes size = {};
    int64_t rows = frames;
    auto most = [](int64_t a, int64_t b) { return a > b ? a : b; };
    auto multiplies = [&](int64_t inputs, int width) { size.whole = most(size.whole, whole_floats(inputs, width)); };
    auto joins = [&](int kept, int channels) {
        size.joined = most(size.joined, (kept + rows) * channels);
        multiplies(kept + rows, channels);
    };
    auto spares = [&](int64_t floats) { size.spare = most(size.spare, floats); };
    auto holds = [&](int channels) { size.latents = most(size.latents, rows * channels); };
    joins(history(codec.pre), codec.pre.inputs);
    spares(rows * codec.semantic.inputs);
    spares(stack_scratch(stack_of(codec), frames));
    multiplies(rows, codec.semantic.inputs);
    multiplies(rows, codec.input.inputs);
    multiplies(rows, codec.output.inputs);
    holds(codec.semantic.outputs), holds(codec.pre.outputs), holds(codec.input.outputs), holds(codec.output.outputs);
    for (int i = 0; i < codec.latent_count; i++) {
        const Latent& latent = codec.latents[i];
        joins(history(latent.conv), latent.conv.inputs);
        rows *= latent.ratio;
        joins(KERNEL - 1, latent.channels);
        holds(latent.channels);
        spares(rows * latent.wide.outputs);
        multiplies(rows, latent.narrow.inputs);
    }
    joins(history(codec.head), codec.head.inputs);
    holds(codec.head.outputs);
    for (int i = 0; i < codec.block_count; i++) {
        const Upsampling& block = codec.blocks[i];
        joins(history(block.conv), block.conv.inputs);
        rows *= block.rate;
        for (const Unit& unit : block.units)
            joins(history(unit.conv_1), block.channels), joins(history(unit.conv_2), block.channels);
        spares(rows * block.channels);
        size.blocks += rows * block.channels;
    }
    joins(KERNEL - 1, codec.channels);
    return size;
}

// ---- parts of a layer

// Runs part(first, rows) for runs of rows that share out the work. A call of few values stays on one thread.
template <class Part> void share_rows(Pool* pool, int rows, int channels, Part part) {
    const int at_once = 1 + 8192 / channels, parts = (rows + at_once - 1) / at_once;
    if (!pool || parts == 1) return part(0, rows);
    parallel(pool, parts, [&](int i) { part(i * at_once, smaller(at_once, rows - i * at_once)); });
}

// out = x + sin²(frequency x) magnitude, for rows of channels.
void snake_rows(const Snake& snake, const float* x, int rows, int channels, float* out) {
    for (int row = 0; row < rows; row++, x += channels, out += channels)
        by_vector(channels, [&](int i, int n) {
            const vf v = ld(x + i, n);
            st(out + i, v + vsin2(v * ld(snake.frequency + i, n)) * ld(snake.magnitude + i, n), n);
        });
}

// Puts the last `kept` inputs, which `state` holds, in front of x [rows][channels], or of snake(x), and keeps the new
// end. Returns [kept + rows][channels].
const float* join(const Work& work, Cursor& state, int kept, const Snake* snake, const float* x, int rows,
                  int channels) {
    const int64_t old = (int64_t)kept * channels, added = (int64_t)rows * channels;
    float *past = state.take(old), *joined = work.joined, *end = joined + old;
    memcpy(joined, past, old * sizeof(float));
    if (snake)
        share_rows(work.pool, rows, channels, [&](int first, int count) {
            const int64_t start = (int64_t)first * channels;
            snake_rows(*snake, x + start, count, channels, end + start);
        });
    else
        memcpy(end, x, added * sizeof(float));
    memcpy(past, joined + added, old * sizeof(float));
    return joined;
}

void project(const Work& work, const Matrix& matrix, const float* x, int rows, const float* onto, float* out) {
    product(matrix, work.pool, x, matrix.inputs, rows, 1, 0, onto, out, matrix.outputs, work.whole);
}

// x [rows][inputs], or snake(x), → out [rows][outputs], added to `onto`, which may be null or out.
void convolve(const Work& work, Cursor& state, const Conv& conv, const Snake* snake, const float* x, int rows,
              const float* onto, float* out) {
    const int kept = history(conv);
    const float* joined = kept || snake ? join(work, state, kept, snake, x, rows, conv.inputs) : x;
    product(conv.matrix, work.pool, joined, conv.inputs, rows, conv.taps, (int64_t)conv.dilation * conv.inputs, onto,
            out, conv.outputs, work.whole);
}

// x Φ(x), the GELU, in place. erfc is the fifth polynomial of Abramowitz and Stegun, 7.1.26: off by at most 1.5e-7, and
// the same on every platform.
vf gelu(vf x) {
    const vf z = x * all(0.70710678f), size = z < all(0.f) ? -z : z, t = all(1.f) / (all(1.f) + all(0.3275911f) * size);
    vf p = all(1.061405429f);
    p = p * t + all(-1.453152027f);
    p = p * t + all(1.421413741f);
    p = p * t + all(-0.284496736f);
    p = p * t + all(0.254829592f);
    const vf outside = all(0.5f) * p * t * vexp(-z * z);  // of Φ, beyond |x|
    return x < all(0.f) ? x * outside : x - x * outside;
}

void gelu_each(float* x, int count) {
    by_vector(count, [&](int i, int n) { st(x + i, gelu(ld(x + i, n)), n); });
}

// A sum of products in one order, whatever the alignment.
float dot(const float* a, const float* b, int count) {
    vf sum = {};
    by_vector(count, [&](int i, int n) { sum += ld(a + i, n) * ld(b + i, n); });
    return hsum(sum);
}

// ---- the latents

// Adds code's vector. A code outside the table counts as its nearest one, as in the module.
void add_vector(const Table& table, int32_t code, float* sum) {
    code = code < 0 ? 0 : code < table.rows ? code : table.rows - 1;
    const int64_t start = (int64_t)code * table.width;
    if (table.kind == FLOAT32) {
        const float* vector = (const float*)table.weights + start;
        for (int i = 0; i < table.width; i++) sum[i] += vector[i];
        return;
    }
    const uint16_t* vector = (const uint16_t*)table.weights + start;
    for (int i = 0; i < table.width; i++) {
        const uint32_t bits = (uint32_t)vector[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        sum[i] += value;
    }
}

// codes [frames][groups] → out [frames][codebook_dim]: the two sums of the split RVQ, projected and added.
void dequantize(const Codec& codec, const Work& work, int frames, int groups, const int32_t* codes, float* out) {
    const int width = codec.semantic.inputs, split = codec.semantic_count;
    auto sums = [&](int first, int last) {
        memset(work.spare, 0, sizeof(float) * frames * width);
        for (int frame = 0; frame < frames; frame++)
            for (int group = first; group < last; group++)
                add_vector(codec.codebooks[group], codes[(int64_t)frame * groups + group],
                           work.spare + (int64_t)frame * width);
    };
    sums(0, split);
    project(work, codec.semantic, work.spare, frames, nullptr, out);
    sums(split, groups);
    project(work, codec.acoustic, work.spare, frames, out, out);
}

// The window's keys and values lie in the state, frame p at window - 1 + p % SPARE_POSITIONS. A frame that has no place
// behind the last one begins again, after the window before it has moved to the front.
void attend_window(const Codec& codec, const Work& work, Cursor& state, int64_t position, int frames, float* x) {
    const Stack transformer = stack_of(codec);
    const int kept = codec.window - 1, width = transformer.kv_heads * transformer.head_dim;
    const int start = (int)(position % SPARE_POSITIONS);
    float *keys = state.take(cache_size(transformer)), *values = state.take(cache_size(transformer));
    if (start == 0 && position > 0)
        for (int layer = 0; layer < 2 * transformer.count; layer++) {  // the values' layers are behind the keys'
            float* front = keys + (int64_t)layer * transformer.positions * width;
            memmove(front, front + (int64_t)SPARE_POSITIONS * width, sizeof(float) * kept * width);
        }
    Place places[FRAMES_AT_ONCE];
    for (int i = 0; i < frames; i++) {
        const int64_t frame = position + i;
        const int place = kept + start + i;
        places[i] = Place{keys, values, place, frame < kept ? place - (int)frame : place - kept, (int32_t)frame};
    }
    stack(transformer, work.pool, frames, x, places, nullptr, work.spare, frames);
}

// codes [frames][groups] → `from` [frames][latent_dim].
void latents(const Codec& codec, const Work& work, Cursor& state, int64_t position, int frames, int groups,
             const int32_t* codes, float* from, float* other) {
    dequantize(codec, work, frames, groups, codes, other);
    convolve(work, state, codec.pre, nullptr, other, frames, nullptr, from);
    project(work, codec.input, from, frames, nullptr, other);
    attend_window(codec, work, state, position, frames, other);
    project(work, codec.output, other, frames, nullptr, from);
}

// ---- the waveform

// A depthwise convolution and a LayerNorm: joined [6 + rows][channels] → out [rows][channels].
void depthwise_norm(const Latent& latent, const float* joined, int rows, float* out) {
    const int channels = latent.channels;
    for (int row = 0; row < rows; row++, joined += channels, out += channels) {
        for (int c = 0; c < channels; c++) out[c] = latent.depthwise_bias[c];
        for (int tap = 0; tap < KERNEL; tap++) {
            const float *x = joined + (int64_t)tap * channels, *weight = latent.depthwise + (int64_t)tap * channels;
            for (int c = 0; c < channels; c++) out[c] += x[c] * weight[c];
        }
        float mean = 0, variance = 0;
        for (int c = 0; c < channels; c++) mean += out[c];
        mean /= (float)channels;
        for (int c = 0; c < channels; c++) variance += (out[c] - mean) * (out[c] - mean);
        const float scale = 1.f / sqrtf(variance / (float)channels + NORM_EPSILON);
        for (int c = 0; c < channels; c++) out[c] = (out[c] - mean) * scale * latent.norm[c] + latent.norm_bias[c];
    }
}

// x [rows][channels] → out [rows * ratio][channels]; x is overwritten.
void upsample_latents(const Latent& latent, const Work& work, Cursor& state, float* x, int rows, float* out) {
    convolve(work, state, latent.conv, nullptr, x, rows, nullptr, out);
    const int channels = latent.channels;
    rows *= latent.ratio;
    depthwise_norm(latent, join(work, state, KERNEL - 1, nullptr, out, rows, channels), rows, x);
    project(work, latent.wide, x, rows, nullptr, work.spare);
    share_rows(work.pool, rows, latent.wide.outputs, [&](int first, int count) {
        gelu_each(work.spare + (int64_t)first * latent.wide.outputs, count * latent.wide.outputs);
    });
    project(work, latent.narrow, work.spare, rows, nullptr, x);
    for (int row = 0; row < rows; row++)
        for (int c = 0; c < channels; c++) {
            const int64_t at = (int64_t)row * channels + c;
            out[at] += latent.gamma[c] * x[at];
        }
}

// x [rows][channels] → rows samples behind `audio`.
void mix_down(const Codec& codec, const Work& work, Cursor state, const float* x, int rows, Cursor& audio) {
    const int channels = codec.channels;
    const float* joined = join(work, state, KERNEL - 1, &codec.snake, x, rows, channels);
    float* samples = audio.take(rows);
    share_rows(work.pool, rows, KERNEL * channels, [&](int first, int count) {
        for (int i = first; i < first + count; i++) {
            const float sample = dot(joined + (int64_t)i * channels, codec.mono, KERNEL * channels) + codec.mono_bias;
            samples[i] = sample < -1.f ? -1.f : sample > 1.f ? 1.f : sample;
        }
    });
}

// Upsamples x [rows][inputs] by the blocks from number `index` on. Depth first: a run of a block's outputs goes through
// the blocks behind it while the cache holds it. Their layers find their state, and scratch, behind this block's.
void upsample(const Codec& codec, const Work& work, int index, Cursor state, Cursor scratch, const float* x, int rows,
              Cursor& audio) {
    if (index == codec.block_count) return mix_down(codec, work, state, x, rows, audio);
    const Upsampling& block = codec.blocks[index];
    const int64_t a_row = (int64_t)block.rate * block.channels;
    const int most = larger(1, (int)((int64_t)pool_threads(work.pool) * FLOATS_AT_ONCE / a_row));
    const int runs = (rows + most - 1) / most, at_once = (rows + runs - 1) / runs;
    float* out = scratch.take(at_once * a_row);
    for (int first = 0; first < rows; first += at_once) {
        const int count = smaller(at_once, rows - first), steps = count * block.rate;
        Cursor here = state;
        convolve(work, here, block.conv, &block.snake, x + (int64_t)first * block.conv.inputs, count, nullptr, out);
        for (const Unit& unit : block.units) {
            convolve(work, here, unit.conv_1, &unit.snake_1, out, steps, nullptr, work.spare);
            convolve(work, here, unit.conv_2, &unit.snake_2, work.spare, steps, out, out);
        }
        upsample(codec, work, index + 1, here, scratch, out, steps, audio);
    }
}

// ---- the border

bool fits(const Conv& conv, int inputs) {
    return conv.taps > 0 && conv.dilation > 0 && conv.inputs == inputs && conv.matrix.inputs == conv.taps * inputs &&
           conv.outputs > 0 && conv.matrix.outputs == conv.outputs && fits_taps(conv.matrix, conv.taps);
}
bool fits(const Matrix& matrix, int inputs, int outputs) {
    return inputs > 0 && outputs > 0 && matrix.inputs == inputs && matrix.outputs == outputs && fits_taps(matrix, 1);
}

bool consistent(const Stack& stack) {
    if (stack.count < 1 || stack.heads < 1 || stack.kv_heads < 1 || stack.heads % stack.kv_heads) return false;
    if (stack.head_dim < 2 || stack.head_dim % 2) return false;
    const int attended = stack.heads * stack.head_dim, cached = stack.kv_heads * stack.head_dim;
    for (int i = 0; i < stack.count; i++) {
        const Layer& layer = stack.layers[i];
        if (!fits(layer.qkv, stack.hidden, attended + 2 * cached)) return false;
        if (!fits(layer.out, attended, stack.hidden)) return false;
        if (!fits(layer.gate_up, stack.hidden, 2 * stack.inner)) return false;
        if (!fits(layer.down, stack.inner, stack.hidden)) return false;
    }
    return true;
}

// Whether each layer's outputs are the next one's inputs.
bool consistent(const Codec& codec) {
    const int split = codec.semantic_count, books = codec.codebook_count, hidden = codec.stack.hidden;
    if (split < 1 || books <= split || codec.latent_count < 0 || codec.block_count < 0) return false;
    if (codec.window < 1 || !consistent(codec.stack)) return false;
    const int width = codec.semantic.inputs;
    for (int i = 0; i < books; i++)
        if (codec.codebooks[i].width != width || codec.codebooks[i].rows < 1) return false;
    if (!fits(codec.semantic, width, codec.pre.inputs) || !fits(codec.acoustic, width, codec.pre.inputs)) return false;
    int channels = codec.pre.outputs, samples = 1;
    if (!fits(codec.pre, codec.pre.inputs) || !fits(codec.input, channels, hidden)) return false;
    channels = codec.output.outputs;
    if (!fits(codec.output, hidden, channels)) return false;
    for (int i = 0; i < codec.latent_count; i++) {
        const Latent& latent = codec.latents[i];
        if (latent.ratio < 1 || !fits(latent.conv, channels)) return false;
        channels = latent.channels, samples *= latent.ratio;
        if (latent.conv.outputs != latent.ratio * channels) return false;
        if (!fits(latent.wide, channels, latent.wide.outputs)) return false;
        if (!fits(latent.narrow, latent.wide.outputs, channels)) return false;
    }
    if (!fits(codec.head, channels)) return false;
    channels = codec.head.outputs;
    for (int i = 0; i < codec.block_count; i++) {
        const Upsampling& block = codec.blocks[i];
        if (block.rate < 1 || !fits(block.conv, channels)) return false;
        channels = block.channels, samples *= block.rate;
        if (block.conv.outputs != block.rate * channels) return false;
        for (const Unit& unit : block.units)
            if (!fits(unit.conv_1, channels) || !fits(unit.conv_2, channels) || unit.conv_1.outputs != channels ||
                unit.conv_2.outputs != channels)
                return false;
    }
    return channels == codec.channels && samples == codec.samples_per_frame;
}

}  // namespace

int64_t vivavoce_code2wav_state(const Codec* codec) {
    if (!consistent(*codec)) return REFUSED_SHAPE;
    int64_t size = state_of(codec->pre) + 2 * cache_size(stack_of(*codec)) + state_of(codec->head);
    size += state_of_channels(codec->channels);
    for (int i = 0; i < codec->latent_count; i++)
        size += state_of(codec->latents[i].conv) + state_of_channels(codec->latents[i].channels);
    for (int i = 0; i < codec->block_count; i++) {
        const Upsampling& block = codec->blocks[i];
        size += state_of(block.conv);
        for (const Unit& unit : block.units) size += state_of(unit.conv_1) + state_of(unit.conv_2);
    }
    return size;
}

int64_t vivavoce_code2wav_scratch(const Codec* codec, int32_t frames) {
    if (!consistent(*codec)) return REFUSED_SHAPE;
    if (frames < 1) return REFUSED_COUNT;
    const ScratchSizes size = scratch_sizes(*codec, smaller(frames, FRAMES_AT_ONCE));
    return size.joined + size.spare + size.whole + 2 * size.latents + size.blocks;
}

int32_t vivavoce_code2wav(const Codec* codec, Pool* pool, float* state, int64_t position, int32_t frames,
                          int32_t groups, const int32_t* codes, float* audio, float* scratch) {
    if (!consistent(*codec) || groups <= codec->semantic_count || groups > codec->codebook_count) return REFUSED_SHAPE;
    if (frames < 1) return REFUSED_COUNT;
    if (position < 0 || position > INT32_MAX - frames) return REFUSED_POSITION;
    const ScratchSizes size = scratch_sizes(*codec, smaller(frames, FRAMES_AT_ONCE));
    Cursor parts = {scratch}, samples = {audio};
    const Work work = {pool, parts.take(size.joined), parts.take(size.spare), parts.take(size.whole)};
    float *now = parts.take(size.latents), *next = parts.take(size.latents);
    for (int done = 0; done < frames;) {
        // A pass ends where the window moves, so that its frames have their places in a row.
        const int64_t start = position + done;
        const int places = SPARE_POSITIONS - (int)(start % SPARE_POSITIONS);
        const int count = smaller(smaller(frames - done, FRAMES_AT_ONCE), places);
        Cursor here = {state};
        latents(*codec, work, here, start, count, groups, codes + (int64_t)done * groups, now, next);
        done += count;
        if (!audio) continue;
        int rows = count;
        for (int i = 0; i < codec->latent_count; i++) {
            upsample_latents(codec->latents[i], work, here, now, rows, next);
            rows *= codec->latents[i].ratio;
            float* swapped = now;
            now = next, next = swapped;
        }
        convolve(work, here, codec->head, nullptr, now, rows, nullptr, next);
        upsample(*codec, work, 0, here, parts, next, rows, samples);
    }
    return 0;
}
