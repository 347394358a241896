/*
 * lanes.h: how long a program takes on a GPU, which copies both ways while it computes.
 *
 *     compute   [ block 1 ][ block 2 ]....[ block 3 ]      waits for its weights
 *     in        [ w2 ]     [   w3     ]                    which wait for the place of w1
 *     out                  [  a1  ]
 *
 * The lanes are run through on paper, node by node in the program's order. A node begins when
 * its lane is free and the other lanes are through with what it reads, or writes over; loops' ends
 * join the lanes, as record.c captures them. Two answers:
 *
 *     before placing   waits for data alone: no placement takes less, which is what a search needs
 *     after placing    and for bytes: who is given the place of a storage that another lane was
 *                      busy with waits for it, as tape.c makes it wait
 */
#ifndef LANES_H
#define LANES_H

#include "graph/graph.h"
#include "run/tape.h"

/* `seconds` by node, of all its iterations; `placed` NULL: not placed yet. */
double lanes_seconds(const struct graph *g, enum program program, const double *seconds, const struct placement *placed);

#endif
