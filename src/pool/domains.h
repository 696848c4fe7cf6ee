/* SPDX-License-Identifier: MIT
 *
 * Domains that the pool remembers. Each has a serial; first blocks name it as their parent. A
 * domain that is forgotten and met again has a new serial, so that nothing indexed under the old
 * one is found.
 */
#ifndef PKV_POOL_DOMAINS_H
#define PKV_POOL_DOMAINS_H

#include "pool/pool.h"

/* Reads a caller's domain; NULL is the empty one. */
enum pkv_status pkv_domain_read(struct pkv_domain *to, const struct pkv_domain *domain,
                                struct pkv_blame blame);

void pkv_domains_init(struct pkv_pool *pool);

/* The entry for a domain, for one more sequence; forgets another domain if need be. */
enum pkv_status pkv_domains_take(struct pkv_pool *pool, const struct pkv_domain *domain,
                                 uint32_t *entry, struct pkv_blame blame);

void pkv_domains_drop(struct pkv_pool *pool, uint32_t entry);

/* The entry, or PKV_NIL if no sequence has ever had that domain. */
enum pkv_status pkv_domains_look_up(struct pkv_pool *pool, const struct pkv_domain *domain,
                                    uint32_t *entry, struct pkv_blame blame);

#endif
