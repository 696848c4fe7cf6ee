/* SPDX-License-Identifier: MIT
 *
 * The block pool: which block of the cache is free, used, or cached for its contents. It hands out
 * block numbers and never touches keys or values. Sequences (seq.h), the batch step (batch.h), the
 * prefix index (prefix.h) and the auditor (audit.h) work on a pool; doc/block-manager.md is the
 * guide.
 *
 * A block is free (nobody refers to it), used (somebody does), or cached (nobody does, but it is
 * indexed: its contents are found by their prefix, and it is handed out again only when no plain
 * free block is left). All memory is fixed at create: no later call allocates, and each is O(1) for
 * every block that it touches.
 *
 * Threads: without thread_safe one call at a time, ordered by the caller. With it any thread may
 * call at any time; calls wait for each other, and for a batch step from its begin to its commit or
 * rollback. Create and destroy are never concurrent with anything.
 */
#ifndef PAGEDKV_POOL_H
#define PAGEDKV_POOL_H

#include <pagedkv/context.h>
#include <pagedkv/pool_events.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PKV_MAX_GROUPS     8     /* layer groups of one pool */
#define PKV_MAX_PRIORITIES 8     /* priority classes */
#define PKV_MAX_BLOCK_SIZE 32768 /* tokens of a block */

struct pkv_pool;

/* What is indexed, to be found again by a later sequence with the same beginning. */
enum pkv_index_mode {
    PKV_INDEX_FULL_BLOCKS = 0,    /* blocks whose last token is computed */
    PKV_INDEX_PARTIAL_BLOCKS = 1, /* and the last, partial block of a sequence when it is freed;
                                     for pools of one layer group */
    PKV_INDEX_OFF = 2             /* nothing; token ids are neither asked for nor stored */
};

/* Which cached block is handed out first when no plain free block is left. Blocks of a lower
 * priority class always go first; the policy decides within a class. Blocks in use never go. */
enum pkv_eviction {
    PKV_EVICTION_LRU = 0,  /* the one given back longest ago; the tail of a sequence before its
                              front */
    PKV_EVICTION_FIFO = 1, /* the one indexed longest ago, however often it was used since; one that
                              was in use when its turn came goes as soon as it is given back */
    PKV_EVICTION_LFU = 2   /* the one used least often since it was indexed (beyond 4,095 times all
                              count as equal); of these the one given back longest ago */
};

/* Layers that share one block table. Hybrid models have several: full attention beside a sliding
 * window, or different block sizes. All groups draw on the same blocks. */
struct pkv_layer_group {
    int64_t block_size;         /* tokens of a block, 1 to PKV_MAX_BLOCK_SIZE; 0: 16 */
    int64_t max_visible_tokens; /* the window: a token sees itself and the tokens before it, so many
                                   in all, up to 2^30; 0: all. Blocks that no later token will
                                   see are given back as tokens are computed; their table entries
                                   become -1 */
};

struct pkv_pool_options {
    size_t struct_size;
    int64_t num_blocks;                   /* 1 to 2^30 */
    int64_t block_size;                   /* of the only group when groups is NULL; 0: 16 */
    int64_t max_seqs;                     /* sequences alive at the same time, up to 2^24; 0: 256 */
    int64_t max_tokens_per_seq;           /* up to 2^30; 0: 8192 */
    const struct pkv_layer_group *groups; /* [num_groups] in, nullable: one group; copied */
    int64_t num_groups;                   /* 0 to PKV_MAX_GROUPS */
    int32_t index_mode;                   /* enum pkv_index_mode */
    int32_t eviction;                     /* enum pkv_eviction */
    int32_t num_priorities;               /* classes 0 ... n - 1, up to PKV_MAX_PRIORITIES; 0: 1 */
    int32_t thread_safe;                  /* 1: calls may overlap in time */
    uint64_t hash_seed;  /* of the prefix keys; 0: random. A seed that others know allows them to
                           compute keys (doc/prefix-key.md), and to aim for collisions, which cost
                           hits but never give a wrong one */
    int64_t max_domains; /* domains remembered (prefix.h), up to 2^30; 0: twice max_seqs, else above
                            max_seqs. When all are taken the one unused for longest is forgotten,
                            and with it its cached prefixes */
    int64_t max_domain_bytes; /* of one domain as doc/prefix-key.md writes it, below 2^31; 0: 256 */
    pkv_pool_event_callback event; /* nullable */
    void *event_user;
    const struct pkv_allocator *allocator; /* NULL: malloc and free; copied */
};

/* Bytes that pkv_pool_create_in needs for these options; 0 if they are refused. */
PKV_API size_t pkv_pool_memory_size(const struct pkv_pool_options *options);

/* Makes a pool in which every block is free.
 *
 * pool     out; hand it to pkv_pool_destroy; NULL on error
 * options  in; num_blocks must be given
 * errors   NULL_ARGUMENT (pool, options; groups with num_groups), INVALID_ARGUMENT (a number that
 *          is not as said there; block_size beside groups; half an allocator), STRUCT_SIZE,
 *          UNSUPPORTED (partial blocks with several groups), OUT_OF_MEMORY, SYSTEM (no random seed,
 *          no mutex)
 * cost     one allocation and one pass over it. A block costs at most 96 bytes beside its stored
 *          tokens (block_size * 4 bytes, of the largest group); a sequence 4 bytes for each entry
 *          of its tables and some 100 for each group; a domain max_domain_bytes and some 60
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_pool_create(struct pkv_pool **pool,
                                                     const struct pkv_pool_options *options,
                                                     struct pkv_error *error);

/* The same in the caller's memory, aligned to 64 bytes and at least pkv_pool_memory_size long. The
 * memory must outlive the pool; pkv_pool_destroy does not free it.
 * errors   as pkv_pool_create, and MISALIGNED, CAPACITY */
PKV_MUST_USE PKV_API enum pkv_status pkv_pool_create_in(struct pkv_pool **pool, void *memory,
                                                        size_t memory_bytes,
                                                        const struct pkv_pool_options *options,
                                                        struct pkv_error *error);

/* Destroy its batches first. NULL is fine. */
PKV_API void pkv_pool_destroy(struct pkv_pool *pool);

/* The seed of the prefix keys, given or drawn. 0 for NULL. */
PKV_API uint64_t pkv_pool_hash_seed(const struct pkv_pool *pool);

/* A block that a caller holds by itself, outside of any sequence. generation changes each time the
 * block is handed out, so a handle kept too long is refused. A handle of zeroes is none. */
struct pkv_block {
    int32_t block_id;
    uint32_t generation;
};

/* Hands out num_blocks blocks with one reference each, or none.
 *
 * blocks   [num_blocks] out; untouched on error
 * errors   NULL_ARGUMENT, INVALID_ARGUMENT (num_blocks < 0), OUT_OF_BLOCKS (value is what was asked
 *          for, bound what there is), BAD_STATE (a batch step is open, or inside an event callback)
 * cost     O(num_blocks); no allocation
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_block_allocate(struct pkv_pool *pool, int64_t num_blocks,
                                                        struct pkv_block *blocks,
                                                        struct pkv_error *error);

/* Takes one more reference on each block: it needs as many releases as it was allocated, pinned and
 * retained.
 *
 * blocks   [num_blocks] in
 * errors   NULL_ARGUMENT, INVALID_ARGUMENT (num_blocks < 0), BLOCK_OUT_OF_RANGE (a block_id that
 *          this pool does not have), STALE_HANDLE (given back, or handed out anew since),
 *          BAD_STATE; nothing is changed
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_block_retain(struct pkv_pool *pool, int64_t num_blocks,
                                                      const struct pkv_block *blocks,
                                                      struct pkv_error *error);

/* Gives one reference on each block back. Blocks that are free by that are handed out again from
 * the last to the first.
 *
 * blocks   [num_blocks] in
 * errors   NULL_ARGUMENT, INVALID_ARGUMENT (num_blocks < 0), BLOCK_OUT_OF_RANGE, STALE_HANDLE
 *          (given back already, also earlier in the same list, handed out anew, or held by
 *          sequences only), BAD_STATE; nothing is changed
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_block_release(struct pkv_pool *pool, int64_t num_blocks,
                                                       const struct pkv_block *blocks,
                                                       struct pkv_error *error);

/* Makes everything indexed so far unfindable: weights or an adapter have changed. Blocks in use
 * stay in use. Sequences that hold tokens now will never be indexed, for their keys and values come
 * from before; one that is truncated to 0 tokens starts afresh.
 *
 * effect   cached blocks are free; one event CLEARED
 * errors   NULL_ARGUMENT, BAD_STATE
 * cost     O(1), independent of the number of blocks
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_pool_invalidate(struct pkv_pool *pool,
                                                         struct pkv_error *error);

/* Counts of now, and totals since create. What a rolled back batch step did is not in them. */
struct pkv_pool_metrics {
    size_t struct_size;
    int64_t num_blocks; /* = free + cached + used */
    int64_t num_free_blocks;
    int64_t num_cached_blocks;
    int64_t num_used_blocks;
    int64_t num_seqs;
    int64_t num_table_slots;  /* token slots behind all table entries, shared blocks counted each
                                   time */
    int64_t num_waste_tokens; /* of these, slots that hold no token */
    int64_t num_matches;      /* prefix matches of sequences (not mere lookups) */
    int64_t num_hit_tokens;   /* tokens that these found */
    int64_t num_miss_tokens;  /* tokens that they did not */
    int64_t num_hit_blocks;   /* blocks, of all groups */
    int64_t num_miss_blocks;  /* whole blocks asked for and not found, of all groups */
    int64_t num_allocated_blocks;
    int64_t num_evicted_blocks; /* cached blocks handed out for new contents */
    int64_t num_stored_blocks;  /* entries made in the index */
    int64_t num_removed_blocks; /* entries taken out for another reason than eviction */
    int64_t num_copied_blocks;  /* copies asked for by copy-on-write */
    int64_t num_out_of_blocks;  /* calls that were answered so */
    int64_t num_commits;
    int64_t num_rollbacks; /* of batch steps, by themselves or on demand */
    int64_t num_events;    /* sequence number of the next event */
};

/* Counts since the pool was made, and what it holds now.
 *
 * metrics  out, as much as its struct_size has room for
 * errors   NULL_ARGUMENT, STRUCT_SIZE
 * cost     O(max_seqs)
 */
PKV_MUST_USE PKV_API enum pkv_status pkv_pool_metrics_get(struct pkv_pool *pool,
                                                          struct pkv_pool_metrics *metrics,
                                                          struct pkv_error *error);

#ifdef __cplusplus
}
#endif

#endif
