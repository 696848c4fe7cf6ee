/* SPDX-License-Identifier: MIT
 *
 * The table of domains: hashed, compared byte by byte, the unused ones in the order of their last
 * use.
 */
#include "pool/domains.h"

#include <string.h>

#include "pool/key.h"

static unsigned char *bytes_of(const struct pkv_domains *domains, uint32_t entry) {
    return domains->bytes + (int64_t)entry * domains->max_bytes;
}

static void idle_push(struct pkv_domains *domains, uint32_t entry) {
    struct pkv_domain_entry *domain = &domains->entries[entry];
    domain->newer = PKV_NIL;
    domain->older = domains->newest;
    if (domains->newest == PKV_NIL)
        domains->oldest = entry;
    else
        domains->entries[domains->newest].newer = entry;
    domains->newest = entry;
}

static void idle_unlink(struct pkv_domains *domains, uint32_t entry) {
    const struct pkv_domain_entry *domain = &domains->entries[entry];
    if (domain->older == PKV_NIL)
        domains->oldest = domain->newer;
    else
        domains->entries[domain->older].newer = domain->newer;
    if (domain->newer == PKV_NIL)
        domains->newest = domain->older;
    else
        domains->entries[domain->newer].older = domain->older;
}

void pkv_domains_init(struct pkv_pool *pool) {
    struct pkv_domains *domains = &pool->domains;
    domains->oldest = domains->newest = PKV_NIL;
    for (uint32_t i = 0; i <= domains->mask; i++)
        domains->buckets[i] = PKV_NIL;
    for (uint32_t i = 0; i < domains->capacity; i++)
        idle_push(domains, i);
}

static uint32_t find(const struct pkv_domains *domains, uint64_t hash, uint32_t num_bytes) {
    uint32_t entry = domains->buckets[hash & domains->mask];
    for (; entry != PKV_NIL; entry = domains->entries[entry].next) {
        const struct pkv_domain_entry *domain = &domains->entries[entry];
        if (domain->hash == hash && domain->num_bytes == num_bytes &&
            memcmp(bytes_of(domains, entry), domains->encoded, num_bytes) == 0)
            break;
    }
    return entry;
}

static void forget(struct pkv_domains *domains, uint32_t entry) {
    const struct pkv_domain_entry *domain = &domains->entries[entry];
    uint32_t *link = &domains->buckets[domain->hash & domains->mask];
    while (*link != entry)
        link = &domains->entries[*link].next;
    *link = domain->next;
}

/* Into domains->encoded; its hash is the root key of group 0. */
static enum pkv_status encode(struct pkv_pool *pool, const struct pkv_domain *domain,
                              uint64_t *hash, uint32_t *num_bytes, struct pkv_blame blame) {
    struct pkv_domains *domains = &pool->domains;
    struct pkv_domain chosen;
    const enum pkv_status status = pkv_domain_read(&chosen, domain, blame);
    if (status != PKV_STATUS_OK)
        return status;
    const int64_t needed = pkv_key_encode(&chosen, domains->encoded, domains->max_bytes);
    if (needed < 0 || needed > domains->max_bytes)
        return pkv_refuse(blame, PKV_STATUS_CAPACITY, "domain",
                          needed < 0 ? PKV_ERROR_NONE : needed, domains->max_bytes,
                          "must not need more bytes than max_domain_bytes");
    *num_bytes = (uint32_t)needed;
    *hash =
        pkv_key_root(pool->hash_seed, 0, pool->groups[0].block_size, domains->encoded, needed).low;
    return PKV_STATUS_OK;
}

enum pkv_status pkv_domains_look_up(struct pkv_pool *pool, const struct pkv_domain *domain,
                                    uint32_t *entry, struct pkv_blame blame) {
    uint64_t hash;
    uint32_t num_bytes;
    const enum pkv_status status = encode(pool, domain, &hash, &num_bytes, blame);
    if (status == PKV_STATUS_OK)
        *entry = find(&pool->domains, hash, num_bytes);
    return status;
}

enum pkv_status pkv_domains_take(struct pkv_pool *pool, const struct pkv_domain *domain,
                                 uint32_t *entry, struct pkv_blame blame) {
    struct pkv_domains *domains = &pool->domains;
    uint64_t hash;
    uint32_t num_bytes;
    const enum pkv_status status = encode(pool, domain, &hash, &num_bytes, blame);
    if (status != PKV_STATUS_OK)
        return status;
    *entry = find(domains, hash, num_bytes);
    if (*entry != PKV_NIL) {
        if (domains->entries[*entry].num_seqs++ == 0)
            idle_unlink(domains, *entry);
        return PKV_STATUS_OK;
    }
    /* There are more entries than sequences, so one is idle. */
    *entry = domains->oldest;
    idle_unlink(domains, *entry);
    struct pkv_domain_entry *made = &domains->entries[*entry];
    if (made->is_set)
        forget(domains, *entry);
    *made = (struct pkv_domain_entry){.serial = pool->next_serial,
                                      .hash = hash,
                                      .num_seqs = 1,
                                      .num_bytes = num_bytes,
                                      .next = domains->buckets[hash & domains->mask],
                                      .is_set = true};
    pool->next_serial += (uint64_t)pool->num_groups;
    domains->buckets[hash & domains->mask] = *entry;
    if (num_bytes > 0)
        memcpy(bytes_of(domains, *entry), domains->encoded, num_bytes);
    for (int32_t g = 0; g < pool->num_groups; g++)
        domains->root_keys[(int64_t)*entry * pool->num_groups + g] = pkv_key_root(
            pool->hash_seed, g, pool->groups[g].block_size, domains->encoded, num_bytes);
    return PKV_STATUS_OK;
}

void pkv_domains_drop(struct pkv_pool *pool, uint32_t entry) {
    if (--pool->domains.entries[entry].num_seqs == 0)
        idle_push(&pool->domains, entry);
}
