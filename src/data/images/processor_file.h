/*
 * processor_file.h: the files of a model folder that describe its image or video processor.
 *
 * They are transformers': processor_config.json of version 5, with the maps image_processor and
 * video_processor; preprocessor_config.json and video_preprocessor_config.json of all versions.
 */
#pragma once

#include "io/value.h"

/* Finds the description of the processor of images, or of videos, whose own files come first;
 * without one, what the folder has of images counts. *out lives in `b`; NULL: the folder has none.
 * *name is the file's, for messages. */
int processor_file_find(const char *folder, bool videos, struct bump *b, const struct value **out, const char **name,
                        struct error *e);
/* Reads a file of the folder into a tree; *out is NULL when there is none. */
int processor_file_read(const char *folder, const char *name, struct bump *b, const struct value **out,
                        struct error *e);
/* Parses the text of such a file: the map `inner` where it has one, else the whole. */
int processor_file_parse(const char *json, size_t n, const char *inner, struct bump *b, const struct value **out,
                         struct error *e);

/* Reads a number for each channel: a list of three, or one number; a missing value leaves `out`. */
int processor_three(const struct value *map, const char *key, double out[3], struct error *e);
/* Compares the name of a class: ...Fast and ...Pil are other implementations of it. */
bool processor_is_class(const char *name, const char *base);
