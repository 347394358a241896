/*
 * classifier.h: a vision tower with a head: the classes of images, or which of some texts belong to
 * them.
 */
#pragma once

#include "config/config.h"
#include "io/file.h"

/* Reports whether the configured model is a vision tower with a head. */
bool classifier_applies(const struct config *c);
/* Predicts the classes of images, files or folders of them, or with texts which of those belong to
 * each image; prints a line for each, and writes a JSON list to a path (NULL: nowhere). */
int classify(const struct config *c, const struct names *paths, const struct names *texts, const char *json,
             struct error *e);
