// Tests of the CPU's kernels that need neither Python nor a checkpoint, for every platform, also an emulated one:
// products, elementwise functions, draws, the transformer, whole frames of a tiny model, and the pool of threads.
// Build with -I engine/vivavoce_engine/cpu/native -DVIVAVOCE_ASSERTS. Ends with 1 if anything is wrong.
#include <stdio.h>

#include "speech.cpp"

static const Kind KINDS[] = {FLOAT32, BFLOAT16, INT8, INT11};
static int failures = 0;
#define CHECK(condition, ...)                                    \
    do {                                                         \
        if (!(condition)) {                                      \
            failures++;                                          \
            printf("%s:%d: not so: %s;", __FILE__, __LINE__, #condition); \
            printf(" " __VA_ARGS__);                             \
            printf("\n");                                        \
        }                                                        \
    } while (0)

// ---- memory of exactly the asked size, so that a sanitizer sees every access beyond it
enum { HELD_MAX = 1 << 14 };
static void* held[HELD_MAX];
static int held_count = 0;
template <class T> static T* make(int64_t count) {
    T* memory = (T*)calloc(count > 0 ? count : 1, sizeof(T));
    if (!memory || held_count == HELD_MAX) abort();
    held[held_count++] = memory;
    return memory;
}
static void free_all() {
    while (held_count) free(held[--held_count]);
}
static uint32_t random_state = 1;
static float noise() {  // [-1, 1)
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / (1 << 23) - 1.f;
}
static float* floats(int64_t count, float scale = 1) {
    float* x = make<float>(count);
    for (int64_t i = 0; i < count; i++) x[i] = scale * noise();
    return x;
}
static uint16_t upper(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}
static float from_upper(uint16_t upper) {
    uint32_t bits = (uint32_t)upper << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static bool same(const float* a, const float* b, int64_t count) { return memcmp(a, b, count * sizeof(float)) == 0; }

// ---- products
struct Case { Matrix matrix; double* plain; };  // plain [inputs][outputs]
static bool is_whole_number(Kind kind) { return kind == INT8 || kind == INT11; }
// The inputs that share a scale: at most `most`, and even. 0 if a product of whole numbers cannot have such inputs.
static int block_of(int per_tap, int most = 64) {
    for (int block = most; block >= 2; block -= 2)
        if (per_tap % block == 0) return block;
    return 0;
}
static Case random_matrix(int inputs, int outputs, Kind kind, bool bias, float scale = 1, int most_block = 64) {
    const int block = block_of(inputs, most_block);
    int blocks = (outputs + BLOCK - 1) / BLOCK, padded = blocks * BLOCK, groups = block ? inputs / block : 0;
    bool is_whole = is_whole_number(kind);
    Case c = {{nullptr, nullptr, nullptr, inputs, outputs, kind, block}, make<double>((int64_t)inputs * outputs)};
    float* scales = is_whole ? make<float>((int64_t)groups * padded) : nullptr;
    const int largest = kind == INT8 ? 127 : 1023;
    for (int i = 0; is_whole && i < groups * padded; i++) scales[i] = scale * (1.27f + 0.127f * noise()) / largest;
    int64_t count = (int64_t)inputs * padded;
    float* wide = kind == FLOAT32 ? make<float>(count) : nullptr;
    uint16_t* half = kind == BFLOAT16 ? make<uint16_t>(count) : nullptr;
    int8_t* bytes = kind == INT8 ? make<int8_t>(count) : nullptr;
    int16_t* words = kind == INT11 ? make<int16_t>(count) : nullptr;
    for (int i = 0; i < inputs; i++)
        for (int j = 0; j < outputs; j++) {
            float value = scale * noise();
            int64_t at = ((int64_t)(j / BLOCK) * inputs + i) * BLOCK, lane = j % BLOCK;
            int64_t pair = ((int64_t)(j / BLOCK) * inputs + i / 2 * 2) * BLOCK + 2 * lane + i % 2;
            double* plain = c.plain + (int64_t)i * outputs + j;
            if (wide) *plain = wide[at + lane] = value;
            if (half) *plain = from_upper(half[at + 2 * (lane % 16) + lane / 16] = upper(value));
            if (bytes) *plain = (bytes[pair] = (int8_t)(127 * noise())) * (double)scales[i / block * padded + j];
            if (words) *plain = (words[pair] = (int16_t)(1023 * noise())) * (double)scales[i / block * padded + j];
        }
    c.matrix.weights = wide ? (void*)wide : half ? (void*)half : bytes ? (void*)bytes : (void*)words;
    c.matrix.scales = scales;
    float* given = bias ? make<float>(padded) : nullptr;
    for (int j = 0; bias && j < outputs; j++) given[j] = noise();
    c.matrix.bias = given;
    return c;
}
// x [rows][width] as a product sees it: one of whole numbers sees multiples of the largest of a block over 32767.
template <class T> static double* rounded_inputs(Kind kind, const T* x, int64_t count, int width, int block) {
    double* rounded = make<double>(count);
    for (int64_t i = 0; i < count; i++) rounded[i] = x[i];
    if (!is_whole_number(kind)) return rounded;
    for (int64_t i = 0; i < count; i++) {
        const T* start = x + i / width * width + i % width / block * block;
        double top = 0;
        for (int j = 0; j < block; j++) top = fabs((double)start[j]) > top ? fabs((double)start[j]) : top;
        rounded[i] = top == 0 ? 0 : rint(x[i] * 32767 / top) * top / 32767;
    }
    return rounded;
}
static void test_product(int rows, int inputs, int outputs, int taps, Kind kind, Pool* pool) {
    int per_tap = inputs / taps, dilation = taps > 1 ? 3 : 0, gap = 3;
    int block = block_of(per_tap, inputs > 200 ? 48 : 64);
    if (is_whole_number(kind) && !block) return;
    Case c = random_matrix(inputs, outputs, kind, outputs % 2 == 0, 1, block ? block : 2);
    int64_t stride = outputs + gap, reached = rows - 1 + (taps - 1) * dilation, needed = (reached + 1) * per_tap;
    float *x = floats(needed), *onto = floats(rows * stride), *out = make<float>(rows * stride - gap);
    float* spare = make<float>(whole_floats(reached + 1, per_tap));
    double* seen = rounded_inputs(kind, x, needed, per_tap, block);
    product(c.matrix, nullptr, x, per_tap, rows, taps, (int64_t)dilation * per_tap, onto, out, stride, spare);
    double worst = 0;
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < outputs; j++) {
            double sum = onto[r * stride + j] + (c.matrix.bias ? c.matrix.bias[j] : 0);
            for (int i = 0; i < inputs; i++)
                sum += c.plain[(int64_t)i * outputs + j] *
                       seen[(int64_t)(r + i / per_tap * dilation) * per_tap + i % per_tap];
            double off = fabs(sum - out[r * stride + j]) / (1 + fabs(sum));
            worst = off > worst ? off : worst;
        }
    // An input may lie on the border of two whole numbers, where float and double go different ways.
    const double most = is_whole_number(kind) ? 1e-4 : 3e-5;
    CHECK(worst < most, "%d rows of %d -> %d, %d taps, kind %d: %.1e off", rows, inputs, outputs, taps, kind, worst);
    for (int r = 0; r + 1 < rows; r++)
        for (int j = outputs; j < stride; j++) CHECK(out[r * stride + j] == 0, "output %d of %d", j, outputs);
    float *one = make<float>(outputs), *shared = make<float>(rows * stride);
    for (int r = 0; r < rows; r++) {
        product(c.matrix, nullptr, x + (int64_t)r * per_tap, per_tap, 1, taps, (int64_t)dilation * per_tap,
                onto + r * stride, one, outputs, spare);
        CHECK(same(one, out + r * stride, outputs), "row %d of %d alone, kind %d", r, rows, kind);
    }
    memcpy(shared, onto, rows * stride * sizeof(float));
    product(c.matrix, pool, x, per_tap, rows, taps, (int64_t)dilation * per_tap, shared, shared, stride, spare);
    for (int r = 0; r < rows; r++)
        CHECK(same(shared + r * stride, out + r * stride, outputs), "threads and in place, row %d", r);
    free_all();
}
static void test_products(Pool* pool) {
    const int shapes[][4] = {{1, 384, 640, 1}, {1, 640, 520, 1}, {2, 256, 256, 1}, {3, 64, 96, 1}, {5, 128, 64, 1},
                             {12, 64, 32, 1},  {27, 224, 64, 7}, {64, 224, 32, 7}, {1, 448, 64, 7}, {9, 64, 96, 2},
                             {13, 100, 33, 1}, {3, 48, 5, 1},    {2, 7, 1, 1},     {1, 1, 100, 1},  {4, 66, 47, 3},
                             {150, 96, 33, 3}};
    for (auto& s : shapes)
        for (Kind kind : KINDS) test_product(s[0], s[1], s[2], s[3], kind, pool);
    for (int rows = 1; rows <= 14; rows++)
        for (Kind kind : KINDS) test_product(rows, 70, 160, 1, kind, pool);
}
// The largest whole numbers do not overflow their sums, and what is not finite stays so.
static void test_extremes() {
    for (Kind kind : KINDS) {
        if (!is_whole_number(kind)) continue;
        Case c = random_matrix(64, 32, kind, false);
        float x[64], out[32], *spare = make<float>(whole_floats(1, 64));
        for (int i = 0; i < 64 * 32; i++)
            if (kind == INT8) ((int8_t*)c.matrix.weights)[i] = -127;
            else ((int16_t*)c.matrix.weights)[i] = -1023;
        for (float& each : x) each = 2;
        product(c.matrix, nullptr, x, 64, 1, 1, 0, nullptr, out, 32, spare);
        for (int j = 0; j < 32; j++) {
            double wanted = -128.0 * (kind == INT8 ? 127 : 1023) * c.matrix.scales[j];
            CHECK(fabs(out[j] / wanted - 1) < 1e-6, "%g, not %g", out[j], wanted);
        }
        const float not_finite[] = {NAN, INFINITY, -INFINITY}, nearly_nothing[] = {0.f, 1e-40f, -1e-33f};
        for (float odd : not_finite) {
            x[5] = odd;
            product(c.matrix, nullptr, x, 64, 1, 1, 0, nullptr, out, 32, spare);
            CHECK(!(out[3] * 0 == 0), "%g of %g", out[3], odd);
        }
        for (float tiny : nearly_nothing) {
            for (float& each : x) each = tiny;
            product(c.matrix, nullptr, x, 64, 1, 1, 0, nullptr, out, 32, spare);
            CHECK(fabs(out[3]) < 1e-25, "%g of %g", out[3], tiny);
        }
        free_all();
    }
}

// ---- elementwise functions
static void test_functions() {
    double exp_off = 0, sin_off = 0;
    for (int i = -4000; i < 4000; i++) {
        float x = i * 0.02f;
        double off = fabs(vexp(all(x))[0] / exp((double)x) - 1), sine = sin((double)x);
        exp_off = off > exp_off ? off : exp_off;
        off = fabs(vsin2(all(x))[1] - sine * sine);
        sin_off = off > sin_off ? off : sin_off;
    }
    CHECK(exp_off < 3e-7, "exp %.1e off", exp_off);
    CHECK(sin_off < 3e-7, "sin^2 %.1e off", sin_off);
    const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-40f};
    for (float x : odd) {
        float e = vexp(all(x))[0], s = vsin2(all(x))[0];
        CHECK(e >= 0 && s * 0 == 0, "of %g: exp %g, sin^2 %g", x, e, s);
    }
    for (int n = 1; n <= 2 * VW + 1; n++) {
        float *x = floats(n), *y = make<float>(n), total = 0, sum = 0, top = x[0];
        by_vector(n, [&](int i, int count) { st(y + i, ld(x + i, count), count); });
        CHECK(same(x, y, n), "%d floats", n);
        for (int i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
        CHECK(highest(x, n) == top, "highest of %d", n);
        total = softmax(x, n);
        for (int i = 0; i < n; i++) {
            sum += x[i];
            CHECK(fabs(x[i] - exp((double)y[i] - top)) < 1e-6, "softmax of %d", n);
        }
        CHECK(fabsf(total - sum) < 1e-5f * n, "sum of %d", n);
    }
    free_all();
}

// ---- draws, against sorting
static int plain_draw(const float* logits, int n, const Sampling& s, float noise) {
    double *p = make<double>(n), total = 0, sum = 0;
    for (int i = 0; i < n; i++) {
        int before = 0;  // codes that are more likely
        for (int j = 0; j < n; j++) before += logits[j] > logits[i];
        p[i] = s.top_k && before >= s.top_k ? 0 : exp((double)logits[i] / s.temperature);
        total += p[i];
    }
    if (s.top_p < 1) {
        double* kept = make<double>(n);
        for (int i = 0; i < n; i++) {  // what is less likely, code i itself, and equal ones with lower numbers
            double below = 0;
            bool best = true;
            for (int j = 0; j < n; j++) {
                below += p[j] < p[i] || (p[j] == p[i] && j <= i) ? p[j] / total : 0;
                best = best && (p[j] < p[i] || (p[j] == p[i] && j <= i));
            }
            kept[i] = below <= 1 - s.top_p && !best ? 0 : p[i];
        }
        total = 0;
        for (int i = 0; i < n; i++) total += p[i] = kept[i];
    }
    for (int i = 0; i < n; i++)
        if ((sum += p[i]) > noise * total) return i;
    return n - 1;
}
static void test_draws() {
    const Sampling kinds[] = {
        {1, 1, 1, 0}, {0.7f, 1, 1, 50}, {0.9f, 0.8f, 1, 0}, {1.3f, 0.6f, 1, 20}, {0.5f, 0.01f, 1, 5}};
    static const int lengths[] = {1, 5, 100, 333};
    for (int n : lengths)
        for (auto& kind : kinds)
            for (int i = 0; i < 20; i++) {
                float *logits = floats(n, 5), *copy = make<float>(n), at = (float)(i * 0.04999);
                if (n > 5) logits[n / 2] = -INFINITY;
                memcpy(copy, logits, n * sizeof(float));
                int code = vivavoce_draw(copy, n, &kind, at), wanted = plain_draw(logits, n, kind, at);
                CHECK(code == wanted, "of %d codes: %d, not %d", n, code, wanted);
                free_all();
            }
    float equal[] = {1, 3, 3, 3, 2}, two[] = {1, 3, 3, 3, 2}, odd[] = {NAN, NAN, NAN}, last[] = {0, 0, 0, -INFINITY};
    const Sampling greedy = {0, 1, 1, 0}, first = {1, 1, 1, 1}, plain = {1, 1, 1, 0}, both = {1, 0.5f, 1, 2};
    CHECK(vivavoce_draw(equal, 5, &greedy, 0.9f) == 1, "the first of the highest");
    CHECK(vivavoce_draw(two, 5, &first, 0.99f) == 3, "codes equal to the k-th stay");
    CHECK(vivavoce_draw(last, 4, &plain, 0.99999994f) == 2, "a code of probability 0");
    const Sampling on_nan[] = {greedy, plain, both};
    for (auto& kind : on_nan) {
        int code = vivavoce_draw(odd, 3, &kind, 0.5f);
        CHECK(code >= 0 && code < 3, "code %d of NaN", code);
    }
    CHECK(uniform(0, 0, 0) == 0.883310795f, "%.9g", uniform(0, 0, 0));  // as cpu/sampling.py
    CHECK(uniform(1, 2, 3) == 0.304273367f, "%.9g", uniform(1, 2, 3));
    CHECK(uniform(-5, 1000000, 63) == 0.835618973f, "%.9g", uniform(-5, 1000000, 63));
    CHECK(uniform(4611686018427400249, 7, 1) == 0.562347054f, "%.9g", uniform(4611686018427400249, 7, 1));
}

// ---- the transformer, against plain loops in double precision
struct Sizes { int hidden, inner, heads, kv_heads, dim, layers, positions; };
struct PlainLayer { Case qkv, out, gate_up, down; };
struct PlainStack { Stack stack; PlainLayer layers[2]; };
static float* near_one(int n) {
    float* x = floats(n, 0.2f);
    for (int i = 0; i < n; i++) x[i] += 1;
    return x;
}
static PlainStack random_stack(const Sizes& z, Kind kind, bool scales, int block = 64) {
    PlainStack p = {};
    Layer* layers = make<Layer>(z.layers);
    const int wide = (z.heads + 2 * z.kv_heads) * z.dim, rotated = z.heads + z.kv_heads;
    for (int l = 0; l < z.layers; l++) {
        PlainLayer& c = p.layers[l];
        c = {random_matrix(z.hidden, wide, kind, false, 0.3f, block),
             random_matrix(z.heads * z.dim, z.hidden, kind, false, 0.3f, block),
             random_matrix(z.hidden, 2 * z.inner, kind, false, 0.3f, block),
             random_matrix(z.inner, z.hidden, kind, false, 0.3f, block)};
        layers[l] = {c.qkv.matrix, c.out.matrix, c.gate_up.matrix, c.down.matrix,
                     near_one(z.hidden), near_one(z.hidden), scales ? nullptr : near_one(rotated * z.dim),
                     scales ? near_one(z.hidden) : nullptr, scales ? near_one(z.hidden) : nullptr};
    }
    float* frequencies = make<float>(z.dim / 2);
    for (int i = 0; i < z.dim / 2; i++) frequencies[i] = 1.f / (1 + i);
    p.stack = {layers,  near_one(z.hidden), frequencies, z.layers,    z.hidden, z.inner,
               z.heads, z.kv_heads,         z.dim,       z.positions, 1e-6f};
    return p;
}
static void plain_rms(double* x, const float* weight, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    for (int i = 0; i < n; i++) x[i] *= weight[i] / sqrt(sum / n + 1e-6);
}
static double* plain_product(const Case& c, const double* x) {
    const int inputs = c.matrix.inputs;
    double* out = make<double>(c.matrix.outputs);
    double* seen = rounded_inputs(c.matrix.kind, x, inputs, inputs, c.matrix.block);
    for (int i = 0; i < inputs; i++)
        for (int j = 0; j < c.matrix.outputs; j++) out[j] += seen[i] * c.plain[(int64_t)i * c.matrix.outputs + j];
    return out;
}
static double* copy_of(const double* x, int n) { return (double*)memcpy(make<double>(n), x, n * sizeof(double)); }
// Attention of a token over keys and values [position + 1][kv_heads * dim], from `first` on.
static double* plain_attention(const Sizes& z, const double* q, double** keys, double** values, int first,
                               int position) {
    double *out = make<double>(z.heads * z.dim), *weights = make<double>(position + 1);
    for (int h = 0; h < z.heads; h++) {
        int shared = h / (z.heads / z.kv_heads) * z.dim;
        double total = 0;
        for (int p = first; p <= position; p++) {
            double score = 0;
            for (int i = 0; i < z.dim; i++) score += q[h * z.dim + i] * keys[p][shared + i];
            total += weights[p] = exp(score / sqrt((double)z.dim));
        }
        for (int p = first; p <= position; p++)
            for (int i = 0; i < z.dim; i++) out[h * z.dim + i] += weights[p] / total * values[p][shared + i];
    }
    return out;
}
// x [tokens][hidden] at positions 0 to tokens - 1 of one row, of which each sees `window` at most.
static void plain_stack(const PlainStack& p, const Sizes& z, int tokens, int window, double* x) {
    const int half = z.dim / 2, rotated = z.heads + z.kv_heads;
    for (int l = 0; l < z.layers; l++) {
        const Layer& layer = p.stack.layers[l];
        double **q = make<double*>(tokens), **keys = make<double*>(tokens), **values = make<double*>(tokens);
        for (int t = 0; t < tokens; t++) {
            double* y = copy_of(x + t * z.hidden, z.hidden);
            plain_rms(y, layer.norm_1, z.hidden);
            q[t] = plain_product(p.layers[l].qkv, y);
            for (int h = 0; h < rotated; h++) {
                double* head = q[t] + h * z.dim;
                if (layer.qk_norm) plain_rms(head, layer.qk_norm + h * z.dim, z.dim);
                for (int i = 0; i < half; i++) {
                    double angle = (double)t * p.stack.frequencies[i], a = head[i], b = head[half + i];
                    head[i] = a * cos(angle) - b * sin(angle);
                    head[half + i] = b * cos(angle) + a * sin(angle);
                }
            }
            keys[t] = q[t] + z.heads * z.dim;
            values[t] = q[t] + rotated * z.dim;
        }
        for (int t = 0; t < tokens; t++) {
            double* residual = x + t * z.hidden;
            int first = t - window + 1 > 0 ? t - window + 1 : 0;
            double* y = plain_product(p.layers[l].out, plain_attention(z, q[t], keys, values, first, t));
            for (int i = 0; i < z.hidden; i++) residual[i] += (layer.scale_1 ? layer.scale_1[i] : 1) * y[i];
            y = copy_of(residual, z.hidden);
            plain_rms(y, layer.norm_2, z.hidden);
            double* g = plain_product(p.layers[l].gate_up, y);
            for (int i = 0; i < z.inner; i++) g[i] *= g[z.inner + i] / (1 + exp(-g[i]));
            y = plain_product(p.layers[l].down, g);
            for (int i = 0; i < z.hidden; i++) residual[i] += (layer.scale_2 ? layer.scale_2[i] : 1) * y[i];
        }
    }
    for (int t = 0; t < tokens; t++) plain_rms(x + t * z.hidden, p.stack.norm, z.hidden);
}
static void test_stack(const Sizes& z, Kind kind, bool scales, int tokens, int window, Pool* pool) {
    if (is_whole_number(kind) && (z.hidden % 2 || z.inner % 2 || z.heads * z.dim % 2)) return;
    PlainStack p = random_stack(z, kind, scales, 16);
    int64_t cached = (int64_t)z.layers * z.positions * z.kv_heads * z.dim, count = (int64_t)tokens * z.hidden;
    float *x = floats(count), *keys = make<float>(cached), *values = make<float>(cached);
    double* wanted = make<double>(count);
    for (int64_t i = 0; i < count; i++) wanted[i] = x[i];
    plain_stack(p, z, tokens, window, wanted);
    Place* places = make<Place>(tokens);
    for (int t = 0; t < tokens; t++) places[t] = {keys, values, t, larger(0, t - window + 1), t};
    float *at_once = make<float>(count), *shared = make<float>(count), *by_token = make<float>(count);
    float* const copies[] = {at_once, shared, by_token};
    for (float* copy : copies) memcpy(copy, x, count * sizeof(float));
    float* scratch = make<float>(stack_scratch(p.stack, tokens));
    stack(p.stack, nullptr, tokens, at_once, places, nullptr, scratch, tokens);
    stack(p.stack, pool, tokens, shared, places, nullptr, scratch, tokens);
    float* small = make<float>(stack_scratch(p.stack, 1));
    for (int t = 0; t < tokens; t++)
        stack(p.stack, nullptr, 1, by_token + t * z.hidden, places + t, nullptr, small, 1);
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        double off = fabs(wanted[i] - at_once[i]);
        worst = off > worst ? off : worst;
    }
    const double most = is_whole_number(kind) ? 5e-4 : 1e-4;
    CHECK(worst < most, "%d tokens of %d, kind %d: %.1e off", tokens, z.hidden, kind, worst);
    CHECK(same(at_once, shared, count), "threads, %d tokens of %d", tokens, z.hidden);
    for (int wanted = 0; wanted <= 2 && wanted < tokens; wanted++) {
        float *last = make<float>(count), *keys_before = make<float>(cached), *values_before = make<float>(cached);
        memcpy(last, x, count * sizeof(float));
        memcpy(keys_before, keys, cached * sizeof(float));
        memcpy(values_before, values, cached * sizeof(float));
        memset(keys, 0, cached * sizeof(float));
        memset(values, 0, cached * sizeof(float));
        stack(p.stack, pool, tokens, last, places, nullptr, scratch, wanted);
        const int64_t from = (int64_t)(tokens - wanted) * z.hidden;
        CHECK(same(last + from, at_once + from, (int64_t)wanted * z.hidden), "the last %d of %d", wanted, tokens);
        CHECK(same(keys, keys_before, cached) && same(values, values_before, cached), "keys of %d tokens", tokens);
    }
    CHECK(same(at_once, by_token, count), "token by token, %d tokens of %d", tokens, z.hidden);
    free_all();
}
static void test_stacks(Pool* pool) {
    const Sizes tiny = {48, 40, 3, 1, 16, 2, 90}, odd = {33, 21, 2, 2, 6, 2, 12}, wide = {96, 128, 4, 2, 72, 1, 20};
    const Sizes five = {20, 12, 5, 1, 8, 1, 9}, eight = {24, 16, 8, 2, 4, 2, 9};  // heads that share: 3 + 2, and 2 + 2
    for (Kind kind : KINDS) {
        test_stack(tiny, kind, false, 5, 1000, pool);
        test_stack(odd, kind, true, 11, 4, pool);
        test_stack(wide, kind, false, 20, 1000, pool);
        test_stack(five, kind, false, 9, 1000, pool);
        test_stack(eight, kind, false, 9, 3, pool);
    }
    test_stack(tiny, FLOAT32, false, 80, 7, pool);  // more rows than attend at once
}

// ---- whole frames of a tiny model
enum { ROWS = 4, GROUPS = 4, VOCABULARY = 100, FIRST_CONTROL = 80, END = 90, RING = 5, TEXT_ROWS = 30, TEXTS = 16 };
struct Model { Talker talker; Predictor predictor; Rows rows; };
static Table random_table(int rows, int width, Kind kind) {
    if (kind == FLOAT32) return {floats((int64_t)rows * width), rows, width, FLOAT32};
    uint16_t* words = make<uint16_t>((int64_t)rows * width);
    for (int i = 0; i < rows * width; i++) words[i] = upper(noise());
    return {words, rows, width, BFLOAT16};
}
static Model random_model(Kind kind, bool projection) {
    const Sizes z = {48, 40, 3, 1, 16, 2, 40}, small = {projection ? 24 : 48, 20, 2, 1, 8, 1, GROUPS};
    const Kind table = kind == FLOAT32 ? FLOAT32 : BFLOAT16;
    random_state = 7;
    Table *later = make<Table>(GROUPS - 1), *inputs = make<Table>(GROUPS - 1);
    Matrix* heads = make<Matrix>(GROUPS - 1);
    for (int g = 0; g < GROUPS - 1; g++) {
        later[g] = random_table(50, z.hidden, table);
        inputs[g] = random_table(g ? 50 : VOCABULARY, small.hidden, FLOAT32);
        heads[g] = random_matrix(small.hidden, 50, kind, false).matrix;
    }
    Model m = {};
    m.talker = {random_stack(z, kind, false).stack, random_matrix(z.hidden, VOCABULARY, kind, false).matrix,
                random_table(TEXT_ROWS, z.hidden, table), random_table(VOCABULARY, z.hidden, table), later, GROUPS, END,
                FIRST_CONTROL, 1, 1, 2};
    m.predictor = {random_stack(small, kind, false).stack, {}, heads, inputs, GROUPS, projection};
    if (projection) m.predictor.projection = random_matrix(z.hidden, small.hidden, kind, true).matrix;
    int64_t cached = (int64_t)ROWS * z.layers * z.positions * z.kv_heads * z.dim;
    int64_t in_frame = (int64_t)ROWS * small.layers * small.positions * small.kv_heads * small.dim;
    Rows& r = m.rows;
    r = {make<float>(cached), make<float>(cached), make<float>(in_frame), make<float>(in_frame),
         make<float>(ROWS * z.hidden), make<int64_t>(ROWS), make<int32_t>(ROWS), make<int32_t>(ROWS * TEXTS),
         make<int32_t>(ROWS), make<int32_t>(ROWS), make<int32_t>(ROWS * RING * GROUPS),
         make<uint8_t>(ROWS * VOCABULARY), make<Sampling>(ROWS), make<Sampling>(ROWS), ROWS, RING, TEXTS};
    for (int i = 0; i < ROWS; i++) {
        r.seed[i] = 100 + i;
        r.trailing_count[i] = 3 * i;
        r.min_frames[i] = 100;
        r.talker_sampling[i] = {i == 0 ? 0 : 0.8f, i == 3 ? 0.9f : 1, i == 1 ? 1.1f : 1, i == 2 ? 0 : 20};
        r.predictor_sampling[i] = {i == 0 ? 0 : 0.7f, 1, 1, 10};
        for (int j = 0; j < TEXTS; j++) r.trailing[i * TEXTS + j] = (i * 7 + j) * 1000003 - 500;  // clamped ids too
    }
    return m;
}
static void start_all(Model& m, Pool* pool) {
    float* scratch = make<float>(vivavoce_start_scratch(&m.talker, 10));
    random_state = 99;
    for (int i = 0; i < ROWS; i++) {
        float* x = floats((5 + i) * m.talker.stack.hidden);
        CHECK(vivavoce_start(&m.talker, &m.rows, pool, i, 5 + i, x, scratch) == 0);
    }
}
// Speaks `frames` frames of the rows, all at once or one by one -> all codes [frames][ROWS][GROUPS].
static int32_t* speak(Model& m, Pool* pool, int frames, bool batched, float* scores) {
    int32_t* codes = make<int32_t>(frames * ROWS * GROUPS);
    const int32_t rows[] = {0, 1, 2, 3}, windows[] = {0, -1, 3, 30};
    float* scratch = make<float>(vivavoce_frame_scratch(&m.talker, &m.predictor, batched ? ROWS : 1));
    uint8_t ended[ROWS];
    start_all(m, pool);
    for (int f = 0; f < frames; f++) {
        int32_t made[] = {f, f, f, f}, positions[] = {5 + f, 6 + f, 7 + f, 8 + f};
        for (int i = 0; i < ROWS; i += batched ? ROWS : 1)
            CHECK(vivavoce_frame(&m.talker, &m.predictor, &m.rows, pool, batched ? ROWS : 1, rows + i, made + i,
                                 positions + i, windows + i, scores + i * WINDOW, ended + i, scratch) == 0);
        for (int i = 0; i < ROWS; i++) {
            memcpy(codes + (f * ROWS + i) * GROUPS, m.rows.codes + (i * RING + f % RING) * GROUPS, GROUPS * 4);
            CHECK(!ended[i], "before the least number of frames");
            CHECK(m.rows.code_0[i] >= 0 && m.rows.code_0[i] < FIRST_CONTROL, "code %d", m.rows.code_0[i]);
        }
    }
    return codes;
}
static void test_frames(Kind kind, bool projection, Pool* pool) {
    enum { FRAMES = 12 };
    Model m = random_model(kind, projection);
    float *scores = make<float>(ROWS * WINDOW), *others = make<float>(ROWS * WINDOW);
    int32_t* alone = speak(m, nullptr, FRAMES, false, scores);
    float* hidden = make<float>(ROWS * m.talker.stack.hidden);
    memcpy(hidden, m.rows.hidden, ROWS * m.talker.stack.hidden * sizeof(float));
    for (int threads = 0; threads < 2; threads++) {
        memset(m.rows.seen, 0, ROWS * VOCABULARY);
        int32_t* batched = speak(m, threads ? pool : nullptr, FRAMES, true, others);
        CHECK(memcmp(alone, batched, FRAMES * ROWS * GROUPS * 4) == 0, "codes in a batch, kind %d", kind);
        CHECK(same(hidden, m.rows.hidden, ROWS * m.talker.stack.hidden), "hidden states in a batch, kind %d", kind);
        CHECK(memcmp(scores, others, ROWS * WINDOW * 4) == 0, "scores in a batch, kind %d", kind);
    }
    for (int i = 0; i < WINDOW; i++) {  // the last query is at positions 16, 17, 18, 19
        CHECK((scores[i] == -INFINITY) == (i > 16), "score %d of row 0", i);
        CHECK(scores[WINDOW + i] == 0, "a row without a window");
        CHECK((scores[2 * WINDOW + i] == -INFINITY) == (3 + i > 18), "score %d of row 2", i);
        CHECK(scores[3 * WINDOW + i] == -INFINITY, "a window behind the query");
    }
    free_all();
}
static void test_refusals() {
    Model m = random_model(FLOAT32, true);
    const int32_t rows[] = {1, 1}, outside[] = {ROWS}, zero[] = {0, 0}, far[] = {40}, negative[] = {-1};
    float *scratch = make<float>(vivavoce_frame_scratch(&m.talker, &m.predictor, 2)), *x = make<float>(48);
    uint8_t ended[2];
    auto frame = [&](int count, const int32_t* row, const int32_t* made, const int32_t* at) {
        return vivavoce_frame(&m.talker, &m.predictor, &m.rows, nullptr, count, row, made, at, nullptr, nullptr, ended,
                              scratch);
    };
    CHECK(frame(2, rows, zero, zero) == REFUSED_TWICE);
    CHECK(frame(1, outside, zero, zero) == REFUSED_ROW);
    CHECK(frame(1, negative, zero, zero) == REFUSED_ROW);
    CHECK(frame(1, rows, zero, far) == REFUSED_POSITION);
    CHECK(frame(1, rows, negative, zero) == REFUSED_FRAME);
    CHECK(frame(0, rows, zero, zero) == REFUSED_COUNT);
    CHECK(vivavoce_start(&m.talker, &m.rows, nullptr, ROWS, 1, x, scratch) == REFUSED_ROW);
    CHECK(vivavoce_start(&m.talker, &m.rows, nullptr, 0, 41, x, scratch) == REFUSED_POSITION);
    CHECK(vivavoce_start(&m.talker, &m.rows, nullptr, 0, 0, x, scratch) == REFUSED_COUNT);
    float *keys = m.rows.talker_keys, *values = m.rows.talker_values;
    CHECK(vivavoce_force(&m.talker, nullptr, keys, values, 41, x, scratch) == REFUSED_POSITION);
    CHECK(vivavoce_force(&m.talker, nullptr, keys, values, 0, x, scratch) == REFUSED_COUNT);
    m.talker.head.inputs = 47;
    CHECK(vivavoce_force(&m.talker, nullptr, keys, values, 1, x, scratch) == REFUSED_SHAPE);
    CHECK(frame(1, rows, zero, zero) == REFUSED_SHAPE);
    m.talker.head.inputs = 48;
    ((Layer*)m.talker.stack.layers)[1].down.outputs = 49;
    CHECK(vivavoce_start(&m.talker, &m.rows, nullptr, 0, 1, x, scratch) == REFUSED_SHAPE);
    ((Layer*)m.talker.stack.layers)[1].down.outputs = 48;
    ((Table*)m.predictor.inputs)[1].width = 47;
    CHECK(frame(1, rows, zero, zero) == REFUSED_SHAPE);
    ((Table*)m.predictor.inputs)[1].width = m.predictor.stack.hidden;
    CHECK(frame(1, rows, zero, zero) == 0);
    free_all();
}
static void test_end() {  // only the end is left to draw, once it is allowed
    Model m = random_model(FLOAT32, false);
    m.talker.first_control = 0;
    m.rows.min_frames[2] = 1;
    float *scratch = make<float>(vivavoce_frame_scratch(&m.talker, &m.predictor, 1)), *x = floats(2 * 48);
    const int32_t row = 2, frame = 0, position = 2;
    uint8_t ended = 0;
    CHECK(vivavoce_start(&m.talker, &m.rows, nullptr, 2, 2, x, make<float>(vivavoce_start_scratch(&m.talker, 2))) == 0);
    CHECK(vivavoce_frame(&m.talker, &m.predictor, &m.rows, nullptr, 1, &row, &frame, &position, nullptr, nullptr,
                         &ended, scratch) == 0);
    CHECK(ended && m.rows.code_0[2] == END, "code %d", m.rows.code_0[2]);
    free_all();
}

// ---- the pool
static void test_pool() {
    CHECK(vivavoce_pool(1) == nullptr && vivavoce_pool(0) == nullptr);
    vivavoce_pool_end(nullptr);
    for (int threads = 2; threads <= 5; threads++) {
        Pool* pool = vivavoce_pool(threads);
        int64_t sum = 0, wanted = 0;
        for (int job = 0; job < 3000; job++) {
            int items = job % 9;
            parallel(pool, items, [&](int item) {
                parallel(pool, 2, [&](int inner) {
                    __atomic_fetch_add(&sum, (item + 1) * (inner + 1), __ATOMIC_RELAXED);
                });
            });
            wanted += 3 * items * (items + 1) / 2;
            CHECK(sum == wanted, "job %d of %d items", job, items);
        }
        vivavoce_pool_end(pool);
    }
}

int main() {
    Pool* pool = vivavoce_pool(3);
    test_functions();
    test_draws();
    test_products(pool);
    test_extremes();
    test_stacks(pool);
    for (Kind kind : KINDS)
        for (int projection = 0; projection < 2; projection++) test_frames(kind, projection, pool);
    test_refusals();
    test_end();
    test_pool();
    vivavoce_pool_end(pool);
    printf("%s: %s\n", vivavoce_isa(), failures ? "FAILED" : "all is as it should be");
    return failures != 0;
}
