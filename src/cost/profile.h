/*
 * profile.h: profiles of devices that need not be in this machine: GPUs by name, measured profiles
 * that are part of the program, and profiles in files. struct profile is in run/kernel.h.
 */
#pragma once

#include "run/device.h"

struct calibration; /* cost/calibration.h */

/* --- by name (gpus.c --------------------------------------------------- */

/* The profile of a GPU by name, which need not be in this machine: measured if there is one, else
 * its published ceilings (gpus.c). `c` must live as long as the profile. */
int profile_gpu(struct profile *p, struct calibration *c, const char *name, struct error *e);
bool profile_is_gpu(const char *name);
/* Prints the names that resemble another one, such as "rtx-4070" for 4070: "a100-40 or a100-80".
 * False: there are none. */
bool profile_gpu_like(const char *name, struct text *out);
/* Returns the GPU whose figures are used for a GPU of which only the nominal memory is known: of
 * the listed GPUs with bf16 and the nearest memory size, the slowest. *memory: bytes that programs
 * can use of the given size, in the ratio of that GPU. */
const char *profile_of_class(double gib, uint64_t *memory);
/* Measured profiles that are part of the program (gpus.c). */
bool profile_is_stored(const char *name);
int profile_stored(struct profile *p, struct calibration *c, const char *name, struct error *e);
/* Fills the profile of a GPU of this machine: by its name, else from its driver's data. */
void profile_here(struct profile *p, const struct gpu *c);

/* --- as files (profile_file.c) ------------------------------------------------------------ */

void profile_write(const struct profile *p, struct text *out);
/* Fills a profile and its calibration, which must live as long as the profile. Every number is
 * checked; PL_USAGE reports what is wrong. */
int profile_parse(const char *bytes, size_t n, struct profile *p, struct calibration *c, struct error *e);
int profile_read(const char *path, struct profile *p, struct calibration *c, struct error *e);
/* Prints the path of the profile of this machine and thread count, in $XDG_DATA_HOME/plimsoll or
 * ~/.local/share/plimsoll. Returns false if neither is known. */
bool profile_path(int threads, char *out, size_t room);
/* Does as profile_path, but for a GPU, by the name of its profile. */
bool profile_gpu_path(const char *name, char *out, size_t room);
