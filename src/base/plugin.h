/*
 * plugin.h: where the plug-ins are: plimsoll-cuda.so (cuda.h) and plimsoll-mpi.so (dist.h).
 */
#ifndef PLUGIN_H
#define PLUGIN_H

#include <stdbool.h>

enum { PLUGIN_PATH = 3100 };

/* Finds a plug-in's file: beside the program, above it, in the lib folder of an installation, or
 * there relative to the library that holds this code. False: there is none. */
bool plugin_find(const char *name, char path[PLUGIN_PATH]);

#endif
