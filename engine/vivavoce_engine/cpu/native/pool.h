// A pool of threads that share out one job after another. The thread that hands a job in takes part.
//
// A job is a number of items, and a word holds its generation and how many items nobody has taken yet. A thread takes
// an item by counting that word down, so one that sleeps, or that the system has set aside, holds nobody up: the job
// is done when its items are. Threads spin for a moment after a job, because the next product comes in microseconds,
// then sleep; so does the caller that waits for the last item, which may need the core that it would spin on.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(VIVAVOCE_ASSERTS)
#define VIVAVOCE_ASSERT(condition) \
    ((condition) ? (void)0 : (fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition), abort()))
#else
#define VIVAVOCE_ASSERT(condition) ((void)0)
#endif

// ---- what the system offers
#if defined(_WIN32)
// Declared by hand: windows.h would define INT8, and much else.
extern "C" {
typedef unsigned long(__stdcall* ThreadEntry)(void*);
__declspec(dllimport) void* __stdcall CreateThread(void*, size_t, ThreadEntry, void*, unsigned long, unsigned long*);
__declspec(dllimport) unsigned long __stdcall WaitForSingleObject(void*, unsigned long);
__declspec(dllimport) int __stdcall CloseHandle(void*);
__declspec(dllimport) void __stdcall AcquireSRWLockExclusive(void*);
__declspec(dllimport) void __stdcall ReleaseSRWLockExclusive(void*);
__declspec(dllimport) int __stdcall SleepConditionVariableSRW(void*, void*, unsigned long, unsigned long);
__declspec(dllimport) void __stdcall WakeAllConditionVariable(void*);
}
enum : unsigned long { FOREVER = 0xffffffff };
typedef void* Thread;
static inline int32_t process() { return 0; }  // Windows forks none
struct Bell { void *lock, *wake; };  // SRWLOCK and CONDITION_VARIABLE: one pointer each, null at first
static inline void bell_make(Bell*) {}
static inline void bell_end(Bell*) {}
static inline void bell_lock(Bell* bell) { AcquireSRWLockExclusive(&bell->lock); }
static inline void bell_unlock(Bell* bell) { ReleaseSRWLockExclusive(&bell->lock); }
static inline void bell_wait(Bell* bell) { SleepConditionVariableSRW(&bell->wake, &bell->lock, FOREVER, 0); }
static inline void bell_ring(Bell* bell) { WakeAllConditionVariable(&bell->wake); }
#else
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
typedef pthread_t Thread;
static inline int32_t process() { return getpid(); }
struct Bell { pthread_mutex_t lock; pthread_cond_t wake; };
static inline void bell_make(Bell* bell) {
    pthread_mutex_init(&bell->lock, nullptr);
    pthread_cond_init(&bell->wake, nullptr);
}
static inline void bell_end(Bell* bell) {
    pthread_cond_destroy(&bell->wake);
    pthread_mutex_destroy(&bell->lock);
}
static inline void bell_lock(Bell* bell) { pthread_mutex_lock(&bell->lock); }
static inline void bell_unlock(Bell* bell) { pthread_mutex_unlock(&bell->lock); }
static inline void bell_wait(Bell* bell) { pthread_cond_wait(&bell->wake, &bell->lock); }
static inline void bell_ring(Bell* bell) { pthread_cond_broadcast(&bell->wake); }
#endif
static inline void spin_once() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// ---- jobs
struct Pool {
    uint64_t state;  // generation << 32 | items that nobody has taken
    void (*call)(void* job, int32_t item);
    void* job;
    int32_t finished;  // items that are done
    int32_t busy;      // a job is being shared out
    int32_t waiting;   // the caller sleeps until its items are done
    int32_t sleeping, stop, threads;
    int32_t process;  // that has the threads: a fork has none of them
    Bell bell;
    Thread* workers;
};

enum { WORKER_SPINS = 2000, CALLER_SPINS = 2000 };  // of some 40 to 140 cycles each

static inline void pool_wake(Pool* pool) {
    bell_lock(&pool->bell);
    bell_ring(&pool->bell);
    bell_unlock(&pool->bell);
}
// Takes and does one item. False if none is left.
static inline bool pool_take(Pool* pool) {
    uint64_t seen = __atomic_load_n(&pool->state, __ATOMIC_ACQUIRE);
    while ((uint32_t)seen) {
        // If these are of the next job already, the word has changed too, and the exchange fails.
        auto call = __atomic_load_n(&pool->call, __ATOMIC_RELAXED);
        void* job = __atomic_load_n(&pool->job, __ATOMIC_RELAXED);
        if (__atomic_compare_exchange_n(&pool->state, &seen, seen - 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            call(job, (int32_t)((uint32_t)seen - 1));
            __atomic_fetch_add(&pool->finished, 1, __ATOMIC_SEQ_CST);
            if (__atomic_load_n(&pool->waiting, __ATOMIC_SEQ_CST)) pool_wake(pool);
            return true;
        }
    }
    return false;
}
static inline void pool_wait(Pool* pool, int32_t items) {
    for (int spins = 0; spins < CALLER_SPINS; spins++) {
        if (__atomic_load_n(&pool->finished, __ATOMIC_ACQUIRE) == items) return;
        spin_once();
    }
    bell_lock(&pool->bell);
    __atomic_store_n(&pool->waiting, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&pool->finished, __ATOMIC_SEQ_CST) != items) bell_wait(&pool->bell);
    __atomic_store_n(&pool->waiting, 0, __ATOMIC_SEQ_CST);
    bell_unlock(&pool->bell);
}
static inline void pool_share(Pool* pool, int32_t items, void (*call)(void*, int32_t), void* job) {
    __atomic_store_n(&pool->finished, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&pool->call, call, __ATOMIC_RELAXED);
    __atomic_store_n(&pool->job, job, __ATOMIC_RELAXED);
    uint64_t generation = (__atomic_load_n(&pool->state, __ATOMIC_RELAXED) >> 32) + 1;
    __atomic_store_n(&pool->state, generation << 32 | (uint32_t)items, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&pool->sleeping, __ATOMIC_SEQ_CST)) pool_wake(pool);
    while (pool_take(pool)) {}
    pool_wait(pool, items);
}
// Calls each(item) for the items 0 to items - 1, in any order, on all threads of the pool; null is the calling thread
// alone. A second caller, a job within a job, and a process that was forked do their items alone too.
template <class Each> static inline void parallel(Pool* pool, int32_t items, const Each& each) {
    if (pool && items > 1 && pool->process == process() && !__atomic_exchange_n(&pool->busy, 1, __ATOMIC_ACQUIRE)) {
        pool_share(pool, items, [](void* job, int32_t item) { (*(const Each*)job)(item); }, (void*)&each);
        __atomic_store_n(&pool->busy, 0, __ATOMIC_RELEASE);
    } else
        for (int32_t item = 0; item < items; item++) each(item);
}
static inline int pool_threads(const Pool* pool) { return pool ? pool->threads : 1; }

// ---- making and ending a pool
static inline void pool_work(Pool* pool) {
    for (int spins = 0; !__atomic_load_n(&pool->stop, __ATOMIC_ACQUIRE);) {
        if (pool_take(pool)) {
            spins = 0;
        } else if (++spins < WORKER_SPINS) {
            spin_once();
        } else {
            // Says that it sleeps before it looks for items, as a caller offers items before it looks who sleeps.
            bell_lock(&pool->bell);
            __atomic_fetch_add(&pool->sleeping, 1, __ATOMIC_SEQ_CST);
            while (!(uint32_t)__atomic_load_n(&pool->state, __ATOMIC_SEQ_CST) &&
                   !__atomic_load_n(&pool->stop, __ATOMIC_SEQ_CST))
                bell_wait(&pool->bell);
            __atomic_fetch_sub(&pool->sleeping, 1, __ATOMIC_SEQ_CST);
            bell_unlock(&pool->bell);
            spins = 0;
        }
    }
}
#if defined(_WIN32)
static unsigned long __stdcall pool_entry(void* pool) { return pool_work((Pool*)pool), 0; }
static inline bool thread_start(Thread* thread, Pool* pool) {
    return (*thread = CreateThread(nullptr, 0, pool_entry, pool, 0, nullptr)) != nullptr;
}
static inline void thread_join(Thread thread) {
    WaitForSingleObject(thread, FOREVER);
    CloseHandle(thread);
}
#else
static void* pool_entry(void* pool) { return pool_work((Pool*)pool), nullptr; }
static inline bool thread_start(Thread* thread, Pool* pool) {
    sigset_t every, before;  // signals are for the program's own threads
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    bool started = pthread_create(thread, nullptr, pool_entry, pool) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
}
static inline void thread_join(Thread thread) { pthread_join(thread, nullptr); }
#endif
static inline void pool_end(Pool* pool) {
    if (!pool || pool->process != process()) return;
    __atomic_store_n(&pool->stop, 1, __ATOMIC_SEQ_CST);
    pool_wake(pool);
    for (int i = 0; i < pool->threads - 1; i++) thread_join(pool->workers[i]);
    bell_end(&pool->bell);
    free(pool->workers);
    free(pool);
}
// A pool of `threads` threads, of which the caller is one: null for one. Fewer if the system refuses more.
static inline Pool* pool_make(int32_t threads) {
    if (threads < 2) return nullptr;
    Pool* pool = (Pool*)calloc(1, sizeof(Pool));
    Thread* workers = (Thread*)calloc(threads - 1, sizeof(Thread));
    if (!pool || !workers) return free(pool), free(workers), nullptr;
    pool->workers = workers;
    pool->threads = 1;
    pool->process = process();
    bell_make(&pool->bell);
    while (pool->threads < threads && thread_start(workers + pool->threads - 1, pool)) pool->threads++;
    if (pool->threads == 1) return pool_end(pool), nullptr;
    return pool;
}
