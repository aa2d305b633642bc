/* What the latest forward of a plan left in a state cache, so that backward reads no cache that nobody wrote. A
 * cache that the caller gives is the caller's to vouch for; those that the plan keeps itself are looked after here.
 */
#include "native.h"

#include <string.h>

/* Says that the plan keeps a cache at `data` for calls on arrays of `framework`. */
int native_kept_add(native_kept *kept, const void *data, const char *framework) {
  for (int i = 0; i < kept->own_count; ++i) {
    if (strcmp(kept->own[i].framework, framework) == 0) {
      kept->own[i].data = data;
      return 0;
    }
  }
  if (kept->own_count == NATIVE_MAX_CACHES || strlen(framework) >= sizeof kept->own->framework) return -1;
  native_own_cache *const added = &kept->own[kept->own_count++];
  added->data = data;
  strcpy(added->framework, framework);
  return 0;
}

static const native_own_cache *own_cache(const native_kept *kept, const void *data) {
  for (int i = 0; i < kept->own_count; ++i) {
    if (kept->own[i].data == data) return &kept->own[i];
  }
  return NULL;
}

/* A refused call (1xx to 3xx) has written nothing; after a failure of the group (5xx) the library refuses every
 * call, with the reason of that failure. */
void native_kept_after_forward(native_kept *kept, const void *cache, lasp_status status) {
  if (status == LASP_OK) {
    kept->written = 1, kept->cache = cache;
  } else if (status >= LASP_ERROR_INTERNAL && status < LASP_ERROR_PEER_LOST) {
    kept->written = 0;
  }
}

int native_kept_check(const native_kept *kept, const void *cache, const char *call) {
  const native_own_cache *const own = own_cache(kept, cache);
  if (!own || (kept->written && kept->cache == cache)) return 0;
  if (!kept->written) {
    native_refuse(
        LASP_ERROR_INVALID_ARGUMENT,
        "%s: no forward has run on this plan, so that its own cache holds nothing: call forward first, or "
        "give the cache of another forward (cache=)",
        call);
  } else if (own_cache(kept, kept->cache)) {
    native_refuse(
        LASP_ERROR_INVALID_ARGUMENT,
        "%s: the plan's latest forward was on arrays of %s, whose cache is not that of this call on arrays "
        "of %s: use one kind of array for both, or give both the same cache (cache=plan.new_cache())",
        call, own_cache(kept, kept->cache)->framework, own->framework);
  } else {
    native_refuse(LASP_ERROR_INVALID_ARGUMENT,
                  "%s: the plan's latest forward was given a cache: give this call the same one (cache=)", call);
  }
  return -1;
}
