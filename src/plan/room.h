/*
 * room.h: which bytes of an arena are taken, and from which instant of a program to which. It finds
 * the lowest offset that is free for a lifetime.
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
#ifndef ROOM_H
#define ROOM_H

#include "base/base.h"

struct room;
/* For a program of so many instants. */
struct room *room_open(uint32_t instants);
void room_close(struct room *r);
/* Takes bytes [from, to) from instant `start` to instant `end`. */
void room_take(struct room *r, uint64_t from, uint64_t to, uint32_t start, uint32_t end);
/* Takes so many bytes at the lowest offset where they are free from instant `start` to instant
 * `end`; returns it. */
uint64_t room_place(struct room *r, uint64_t bytes, uint32_t start, uint32_t end);

#endif
