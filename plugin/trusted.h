/* Opens what the plugin reads: only files that nobody but this user and root can have written. */
#ifndef NCCLT_TRUSTED_H
#define NCCLT_TRUSTED_H

#include "warn.h"

/* Open a regular file for reading, checked by its descriptor, so that what was checked is what is read. Its owner is
 * this user or root, and neither group nor others can write to it. Returns the descriptor, or -1 with a reason. */
int ncclt_open_trusted(const char *path, char reason[NCCLT_REASON_SIZE]);

#endif
