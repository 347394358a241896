/*
 * free_space.h: which bytes of an arena are taken, and from which instant of a program to which. It
 * finds the lowest offset that is free for a lifetime.
 *
 * The instants are the leaves of a tree, a few of them in one leaf. A node of the tree knows the
 * bytes that are taken at any of its instants, and those taken through all of them:
 *
 *     any    [##########]          a lifetime that covers the node overlaps these
 *     all    [###]                 a lifetime within the node overlaps these
 *            | node | node |
 *
 * Bytes that touch are one range. A placement is dense, so a node has few ranges, however many
 * storages they hold.
 */
#pragma once

#include "base/base.h"

struct free_space;
/* Opens the free space of a program of `instants` nodes: all of it is free. */
struct free_space *free_space_open(uint32_t instants);
void free_space_close(struct free_space *r);
/* Takes bytes [from, to) from instant `start` to instant `end`. */
void free_space_take(struct free_space *r, uint64_t from, uint64_t to, uint32_t start, uint32_t end);
/* Returns the lowest offset from `from` on where bytes are free from instant `start` to instant
 * `end`. */
uint64_t free_space_find(struct free_space *r, uint64_t from, uint64_t bytes, uint32_t start, uint32_t end);
/* Takes `bytes` bytes at the lowest offset where they are free from instant `start` to instant
 * `end`; returns it. */
uint64_t free_space_place(struct free_space *r, uint64_t bytes, uint32_t start, uint32_t end);
