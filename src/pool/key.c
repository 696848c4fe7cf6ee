/* SPDX-License-Identifier: MIT
 *
 * The one place that hashes. Numbers are little-endian, as the platforms of this library are.
 */
#include "pool/key.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>
#if XXH_VERSION_NUMBER < 800
#error "xxHash 0.8 or newer is needed: older ones give other values for XXH3"
#endif

#include "pool/domains.h"

/* What takes the place of the parent's key in a root key: 16 bytes. */
static const char label[16] = "pagedkv prefix 1";

enum { TAG_GROUP = 1, TAG_MODEL = 2, TAG_ADAPTER = 3, TAG_SALT = 4, TAG_MEDIA = 5 };

/* Tokens that are hashed in one piece; larger blocks take the slower way in pieces. */
enum { ONE_PIECE_TOKENS = 256 };

struct writer {
    unsigned char *to;
    int64_t max_bytes;
    int64_t num_bytes;
    bool is_too_long;
};

static void write_bytes(struct writer *writer, const void *data, size_t size) {
    if (size <= (size_t)INT64_MAX / 4 && writer->num_bytes + (int64_t)size <= writer->max_bytes &&
        size > 0)
        memcpy(writer->to + writer->num_bytes, data, size);
    writer->num_bytes += (int64_t)size;
}

static void write_field(struct writer *writer, uint32_t tag, struct pkv_bytes field) {
    if (field.size == 0)
        return;
    if (field.size > UINT32_MAX) {
        writer->is_too_long = true;
        return;
    }
    const uint32_t header[2] = {tag, (uint32_t)field.size};
    write_bytes(writer, header, sizeof(header));
    write_bytes(writer, field.data, field.size);
}

int64_t pkv_key_encode(const struct pkv_domain *domain, unsigned char *encoded, int64_t max_bytes) {
    struct writer writer = {encoded, max_bytes, 0, false};
    write_field(&writer, TAG_MODEL, domain->model);
    write_field(&writer, TAG_ADAPTER, domain->adapter);
    write_field(&writer, TAG_SALT, domain->salt);
    for (size_t i = 0; i < domain->num_media && !writer.is_too_long; i++) {
        write_field(&writer, TAG_MEDIA, domain->media[i]);
        /* Far beyond any capacity: no need to add up what could overflow. */
        if (writer.num_bytes > INT64_MAX / 2)
            return -1;
    }
    return writer.is_too_long ? -1 : writer.num_bytes;
}

static struct pkv_key to_key(XXH128_hash_t hash) {
    return (struct pkv_key){hash.low64, hash.high64};
}

/* Only zeroes make a state that may be reset. */
static void reset(XXH3_state_t *state, uint64_t seed) {
    memset(state, 0, sizeof(*state));
    (void)XXH3_128bits_reset_withSeed(state, seed);
}

static void start(XXH3_state_t *state, uint64_t seed, int32_t group, int64_t block_size) {
    const uint32_t field[4] = {TAG_GROUP, 8, (uint32_t)group, (uint32_t)block_size};
    reset(state, seed);
    (void)XXH3_128bits_update(state, label, sizeof(label));
    (void)XXH3_128bits_update(state, field, sizeof(field));
}

struct pkv_key pkv_key_root(uint64_t seed, int32_t group, int64_t block_size,
                            const unsigned char *encoded, int64_t num_bytes) {
    XXH3_state_t state;
    start(&state, seed, group, block_size);
    if (num_bytes > 0)
        (void)XXH3_128bits_update(&state, encoded, (size_t)num_bytes);
    return to_key(XXH3_128bits_digest(&state));
}

struct pkv_key pkv_key_block(uint64_t seed, struct pkv_key parent, const int32_t *tokens,
                             int64_t num_tokens) {
    const size_t token_bytes = (size_t)num_tokens * sizeof(*tokens);
    if (num_tokens <= ONE_PIECE_TOKENS) {
        struct {
            struct pkv_key parent;
            int32_t tokens[ONE_PIECE_TOKENS];
        } input;
        input.parent = parent;
        memcpy(input.tokens, tokens, token_bytes);
        return to_key(XXH3_128bits_withSeed(&input, sizeof(input.parent) + token_bytes, seed));
    }
    XXH3_state_t state;
    reset(&state, seed);
    (void)XXH3_128bits_update(&state, &parent, sizeof(parent));
    (void)XXH3_128bits_update(&state, tokens, token_bytes);
    return to_key(XXH3_128bits_digest(&state));
}

static enum pkv_status check_field(struct pkv_bytes field, const char *argument,
                                   struct pkv_blame blame) {
    return field.data == NULL && field.size > 0 ? pkv_refuse_missing(blame, argument)
                                                : PKV_STATUS_OK;
}

enum pkv_status pkv_domain_read(struct pkv_domain *to, const struct pkv_domain *domain,
                                struct pkv_blame blame) {
    enum pkv_status status =
        pkv_struct_read(to, sizeof(*to), domain, blame.function, "domain", blame.error);
    if (status == PKV_STATUS_OK)
        status = check_field(to->model, "domain->model", blame);
    if (status == PKV_STATUS_OK)
        status = check_field(to->adapter, "domain->adapter", blame);
    if (status == PKV_STATUS_OK)
        status = check_field(to->salt, "domain->salt", blame);
    if (status == PKV_STATUS_OK && to->media == NULL && to->num_media > 0)
        status = pkv_refuse_missing(blame, "domain->media");
    for (size_t i = 0; status == PKV_STATUS_OK && i < to->num_media; i++)
        status = check_field(to->media[i], "domain->media", blame);
    return status;
}

enum pkv_status pkv_prefix_root_key(uint64_t hash_seed, int32_t group, int64_t block_size,
                                    const struct pkv_domain *domain, struct pkv_key *key,
                                    struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    struct pkv_domain chosen;
    if (key == NULL)
        return pkv_refuse_missing(blame, "key");
    if (group < 0 || group >= PKV_MAX_GROUPS)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "group", group, PKV_MAX_GROUPS,
                          "must lie between 0 and the number of groups");
    if (block_size < 1 || block_size > PKV_MAX_BLOCK_SIZE)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "block_size", block_size,
                          PKV_MAX_BLOCK_SIZE, "must lie between 1 and the largest block size");
    const enum pkv_status status = pkv_domain_read(&chosen, domain, blame);
    if (status != PKV_STATUS_OK)
        return status;
    XXH3_state_t state;
    start(&state, hash_seed, group, block_size);
    /* One field after the other, so that no memory is needed. */
    const struct pkv_bytes fields[] = {chosen.model, chosen.adapter, chosen.salt};
    for (size_t i = 0; i < 3 + chosen.num_media; i++) {
        const struct pkv_bytes field = i < 3 ? fields[i] : chosen.media[i - 3];
        const uint32_t tag = i < 3 ? TAG_MODEL + (uint32_t)i : TAG_MEDIA;
        if (field.size > UINT32_MAX)
            return pkv_refuse(blame, PKV_STATUS_CAPACITY, "domain", PKV_ERROR_NONE, UINT32_MAX,
                              "must not have a field of more bytes than");
        if (field.size == 0)
            continue;
        const uint32_t header[2] = {tag, (uint32_t)field.size};
        (void)XXH3_128bits_update(&state, header, sizeof(header));
        (void)XXH3_128bits_update(&state, field.data, field.size);
    }
    *key = to_key(XXH3_128bits_digest(&state));
    return PKV_STATUS_OK;
}

enum pkv_status pkv_prefix_block_key(uint64_t hash_seed, const struct pkv_key *parent,
                                     const int32_t *token_ids, int64_t num_tokens,
                                     struct pkv_key *key, struct pkv_error *error) {
    const struct pkv_blame blame = {__func__, error};
    if (parent == NULL || token_ids == NULL || key == NULL)
        return pkv_refuse_missing(blame, parent == NULL      ? "parent"
                                         : token_ids == NULL ? "token_ids"
                                                             : "key");
    if (num_tokens < 1 || num_tokens > PKV_MAX_BLOCK_SIZE)
        return pkv_refuse(blame, PKV_STATUS_INVALID_ARGUMENT, "num_tokens", num_tokens,
                          PKV_MAX_BLOCK_SIZE, "must lie between 1 and the largest block size");
    *key = pkv_key_block(hash_seed, *parent, token_ids, num_tokens);
    return PKV_STATUS_OK;
}
