// A pool of threads that share out one job after another. The thread that hands a job in takes part.
//
// A job is a number of items, and a word holds its generation and how many items nobody has taken yet. A thread takes an
// item by counting that word down, so one that sleeps, or that the system has set aside, holds nobody up: the job is done
// when its items are. Threads spin for a moment after a job, because the next product comes in microseconds, then sleep.
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

#if defined(_WIN32)
// By hand: windows.h would define INT8, and much else.
extern "C" {
typedef unsigned long (__stdcall *VivavoceThread)(void*);
__declspec(dllimport) void* __stdcall CreateThread(void*, size_t, VivavoceThread, void*, unsigned long, unsigned long*);
__declspec(dllimport) unsigned long __stdcall WaitForSingleObject(void*, unsigned long);
__declspec(dllimport) int __stdcall CloseHandle(void*);
__declspec(dllimport) int __stdcall SwitchToThread(void);
__declspec(dllimport) void __stdcall AcquireSRWLockExclusive(void*);
__declspec(dllimport) void __stdcall ReleaseSRWLockExclusive(void*);
__declspec(dllimport) int __stdcall SleepConditionVariableSRW(void*, void*, unsigned long, unsigned long);
__declspec(dllimport) void __stdcall WakeAllConditionVariable(void*);
}
#else
#include <pthread.h>
#include <sched.h>
#endif

struct Pool {
    uint64_t state;  // generation << 32 | items that nobody has taken
    void (*call)(void* job, int32_t item);
    void* job;
    int32_t finished;  // items that are done
    int32_t busy;      // a job is being shared out
    int32_t sleeping, stop, threads;
#if defined(_WIN32)
    void *lock, *wake;  // SRWLOCK and CONDITION_VARIABLE are one pointer each, null at first
    void* handles[];
#else
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t handles[];
#endif
};

enum { WORKER_SPINS = 2000, CALLER_SPINS = 2000 };  // of some 40 to 140 cycles each

static inline void spin_once() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
static inline void let_others_run() {
#if defined(_WIN32)
    SwitchToThread();
#else
    sched_yield();
#endif
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
            __atomic_fetch_add(&pool->finished, 1, __ATOMIC_RELEASE);
            return true;
        }
    }
    return false;
}

// Does items 0 to items - 1 in any order. `busy` makes a second caller, or a job within a job, do its items alone.
static inline void pool_share(Pool* pool, int32_t items, void (*call)(void*, int32_t), void* job) {
    __atomic_store_n(&pool->finished, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&pool->call, call, __ATOMIC_RELAXED);
    __atomic_store_n(&pool->job, job, __ATOMIC_RELAXED);
    uint64_t generation = (__atomic_load_n(&pool->state, __ATOMIC_RELAXED) >> 32) + 1;
    __atomic_store_n(&pool->state, generation << 32 | (uint32_t)items, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&pool->sleeping, __ATOMIC_SEQ_CST)) {
#if defined(_WIN32)
        AcquireSRWLockExclusive(&pool->lock);
        ReleaseSRWLockExclusive(&pool->lock);
        WakeAllConditionVariable(&pool->wake);
#else
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
#endif
    }
    while (pool_take(pool)) {}
    for (int spins = 0; __atomic_load_n(&pool->finished, __ATOMIC_ACQUIRE) != items; spins++)
        spins < CALLER_SPINS ? spin_once() : let_others_run();
}

// Calls each(item) for the items 0 to items - 1, on all threads of the pool; null is the calling thread alone.
template <class Each> static inline void parallel(Pool* pool, int32_t items, const Each& each) {
    if (pool && items > 1 && !__atomic_exchange_n(&pool->busy, 1, __ATOMIC_ACQUIRE)) {
        pool_share(pool, items, [](void* job, int32_t item) { (*(const Each*)job)(item); }, (void*)&each);
        __atomic_store_n(&pool->busy, 0, __ATOMIC_RELEASE);
    } else
        for (int32_t item = 0; item < items; item++) each(item);
}

static inline int pool_threads(const Pool* pool) { return pool ? pool->threads : 1; }
