/*
 * lanes.h: predicts the time of a program on a GPU that copies in both directions while it
 * computes.
 *
 *     compute   [ block 1 ][ block 2 ]....[ block 3 ]      waits for its weights
 *     in        [ w2 ]     [   w3     ]                    w3 waits for the bytes of w1
 *     out                  [  a1  ]
 *
 * A lane is one of these queues (enum lane); on a GPU it is a CUDA stream. The program is simulated
 * node by node in its order. A node begins when its lane is free and the other lanes are done with
 * the storages that it reads or overwrites. The end of a loop joins the lanes, as record.c captures
 * them. There are two modes:
 *
 *     before placement   nodes wait for data only: a lower bound for any placement, for the search
 *     after placement    nodes also wait for bytes: a storage that reuses the bytes of one that
 *                        another lane still uses waits for it, as in tape.c
 */
#pragma once

#include "graph/graph.h"
#include "run/tape.h"

/* Returns the seconds of a program whose lanes wait for one another. `seconds`: by node, for all
 * its iterations. `placed` NULL: before placement. */
double lanes_seconds(const struct graph *g, enum program program, const double *seconds,
                     const struct placement *placed);
