/*
 * plimsoll_ops.h: a function for each op of a model, by its name in docs/reference/ops.md;
 * generated from src/graph/ops.def by tools/ops_header.sh (`make docs`).
 *
 *     y = pl_op_rmsnorm(b, x, w, "eps=1e-6");
 *
 * Each returns the op's first output, and is pl_op by another spelling. Inputs that an op can do
 * without are 0; `attributes` is text, in which what is not named is 0.
 */
#ifndef PLIMSOLL_OPS_H
#define PLIMSOLL_OPS_H

#include "plimsoll.h"

/* Emits SLICE: x -> y (attributes: axis start length) */
static inline pl_tensor pl_op_slice(struct pl_builder *builder, pl_tensor x, const char *attributes)
{
    const pl_tensor x_[] = {x};
    return pl_op(builder, "SLICE", 1, x_, attributes);
}

/* Emits PERMUTE: x -> y (attributes: axes) */
static inline pl_tensor pl_op_permute(struct pl_builder *builder, pl_tensor x, const char *attributes)
{
    const pl_tensor x_[] = {x};
    return pl_op(builder, "PERMUTE", 1, x_, attributes);
}

/* Emits LINEAR: x[...,K] w:=x[N,K] bias?[N] add?:=x[...,N]! -> y[...,N] */
static inline pl_tensor pl_op_linear(struct pl_builder *builder, pl_tensor x, pl_tensor w, pl_tensor bias,
                                     pl_tensor add)
{
    const pl_tensor x_[] = {x, w, bias, add};
    return pl_op(builder, "LINEAR", 4, x_, NULL);
}

/* Emits LINEAR_ACT: x[...,K] w:=x[N,K] bias?[N] -> y[...,N] z[...,N] (attributes: kind) */
static inline pl_tensor pl_op_linear_act(struct pl_builder *builder, pl_tensor x, pl_tensor w, pl_tensor bias,
                                         const char *attributes)
{
    const pl_tensor x_[] = {x, w, bias};
    return pl_op(builder, "LINEAR_ACT", 3, x_, attributes);
}

/* Emits MATMUL: a b acc? -> y (attributes: ta tb dtype) */
static inline pl_tensor pl_op_matmul(struct pl_builder *builder, pl_tensor a, pl_tensor b, const char *attributes)
{
    const pl_tensor x_[] = {a, b};
    return pl_op(builder, "MATMUL", 2, x_, attributes);
}

/* Emits BMM: a b acc? -> y (attributes: ta tb dtype) */
static inline pl_tensor pl_op_bmm(struct pl_builder *builder, pl_tensor a, pl_tensor b, const char *attributes)
{
    const pl_tensor x_[] = {a, b};
    return pl_op(builder, "BMM", 2, x_, attributes);
}

/* Emits BMM_ACT: a[...,M,K] z[...,N,K] -> y:stat[...,M,N] (attributes: kind) */
static inline pl_tensor pl_op_bmm_act(struct pl_builder *builder, pl_tensor a, pl_tensor z, const char *attributes)
{
    const pl_tensor x_[] = {a, z};
    return pl_op(builder, "BMM_ACT", 2, x_, attributes);
}

/* Emits RMSNORM: x[...,C] w[C] -> y[...,C] rstd:stat[...] (attributes: eps unit_offset) */
static inline pl_tensor pl_op_rmsnorm(struct pl_builder *builder, pl_tensor x, pl_tensor w, const char *attributes)
{
    const pl_tensor x_[] = {x, w};
    return pl_op(builder, "RMSNORM", 2, x_, attributes);
}

/* Emits LAYERNORM: x[...,C] w[C] b[C] -> y[...,C] mean:stat[...] rstd:stat[...] (attributes: eps)
 * */
static inline pl_tensor pl_op_layernorm(struct pl_builder *builder, pl_tensor x, pl_tensor w, pl_tensor b,
                                        const char *attributes)
{
    const pl_tensor x_[] = {x, w, b};
    return pl_op(builder, "LAYERNORM", 3, x_, attributes);
}

/* Emits ADD_RMSNORM: a[...,C] b:=a[...,C] w[C] -> y[...,C] rstd:stat[...] r[...,C] (attributes: eps
 * unit_offset) */
static inline pl_tensor pl_op_add_rmsnorm(struct pl_builder *builder, pl_tensor a, pl_tensor b, pl_tensor w,
                                          const char *attributes)
{
    const pl_tensor x_[] = {a, b, w};
    return pl_op(builder, "ADD_RMSNORM", 3, x_, attributes);
}

/* Emits ADD_LAYERNORM: a[...,C] b:=a[...,C] w[C] bias[C] -> y[...,C] mean:stat[...] rstd:stat[...]
 * r[...,C] (attributes: eps) */
static inline pl_tensor pl_op_add_layernorm(struct pl_builder *builder, pl_tensor a, pl_tensor b, pl_tensor w,
                                            pl_tensor bias, const char *attributes)
{
    const pl_tensor x_[] = {a, b, w, bias};
    return pl_op(builder, "ADD_LAYERNORM", 4, x_, attributes);
}

/* Emits L2NORM: x[...,C] -> y[...,C] (attributes: eps) */
static inline pl_tensor pl_op_l2norm(struct pl_builder *builder, pl_tensor x, const char *attributes)
{
    const pl_tensor x_[] = {x};
    return pl_op(builder, "L2NORM", 1, x_, attributes);
}

/* Emits ROPE: x[B,T,H,D] inv_freq[D/2] positions?:i32[B,T,...] -> y[B,T,H,D]; D%2=0 (attributes:
 * scale inverse interleaved sections) */
static inline pl_tensor pl_op_rope(struct pl_builder *builder, pl_tensor x, pl_tensor inv_freq, pl_tensor positions,
                                   const char *attributes)
{
    const pl_tensor x_[] = {x, inv_freq, positions};
    return pl_op(builder, "ROPE", 3, x_, attributes);
}

/* Emits RMSNORM_ROPE: x[B,T,H,D] w[D] inv_freq[D/2] positions?:i32[B,T,...] -> y[B,T,H,D]
 * rstd:stat[B,T,H]; D%2=0 (attributes: scale inverse interleaved sections eps unit_offset) */
static inline pl_tensor pl_op_rmsnorm_rope(struct pl_builder *builder, pl_tensor x, pl_tensor w, pl_tensor inv_freq,
                                           pl_tensor positions, const char *attributes)
{
    const pl_tensor x_[] = {x, w, inv_freq, positions};
    return pl_op(builder, "RMSNORM_ROPE", 4, x_, attributes);
}

/* Emits SILU_GATE: gate[...] up:=gate[...] -> y[...] */
static inline pl_tensor pl_op_silu_gate(struct pl_builder *builder, pl_tensor gate, pl_tensor up)
{
    const pl_tensor x_[] = {gate, up};
    return pl_op(builder, "SILU_GATE", 2, x_, NULL);
}

/* Emits GELU_GATE: gate[...] up:=gate[...] -> y[...] */
static inline pl_tensor pl_op_gelu_gate(struct pl_builder *builder, pl_tensor gate, pl_tensor up)
{
    const pl_tensor x_[] = {gate, up};
    return pl_op(builder, "GELU_GATE", 2, x_, NULL);
}

/* Emits SOFTCAP: x[...] -> y[...]; cap>0 (attributes: cap) */
static inline pl_tensor pl_op_softcap(struct pl_builder *builder, pl_tensor x, const char *attributes)
{
    const pl_tensor x_[] = {x};
    return pl_op(builder, "SOFTCAP", 1, x_, attributes);
}

/* Emits ACT: x[...] -> y[...] (attributes: kind) */
static inline pl_tensor pl_op_act(struct pl_builder *builder, pl_tensor x, const char *attributes)
{
    const pl_tensor x_[] = {x};
    return pl_op(builder, "ACT", 1, x_, attributes);
}

/* Emits SOFTMAX: x[...,C] -> y[...,C] */
static inline pl_tensor pl_op_softmax(struct pl_builder *builder, pl_tensor x)
{
    const pl_tensor x_[] = {x};
    return pl_op(builder, "SOFTMAX", 1, x_, NULL);
}

/* Emits ATTENTION: q[B,T,H,D] k[B,S,G,D] v[B,S,G,D] mask?:f32[B,S] ranges?:i32[B,T,2] -> o[B,T,H,D]
 * lse:stat[B,H,T]; window>=0 cap>=0 H%G=0 (attributes: scale causal window cap) */
static inline pl_tensor pl_op_attention(struct pl_builder *builder, pl_tensor q, pl_tensor k, pl_tensor v,
                                        pl_tensor mask, pl_tensor ranges, const char *attributes)
{
    const pl_tensor x_[] = {q, k, v, mask, ranges};
    return pl_op(builder, "ATTENTION", 5, x_, attributes);
}

/* Emits ATTENTION_REL: q[B,T,H,D] k[B,T,H,D] v[B,T,H,D] table_h:float[2*height-1,D]
 * table_w:float[2*width-1,D] -> o[B,T,H,D] lse:stat[B,H,T]; height>0 width>0 T=height*width scale>0
 * (attributes: scale height width) */
static inline pl_tensor pl_op_attention_rel(struct pl_builder *builder, pl_tensor q, pl_tensor k, pl_tensor v,
                                            pl_tensor table_h, pl_tensor table_w, const char *attributes)
{
    const pl_tensor x_[] = {q, k, v, table_h, table_w};
    return pl_op(builder, "ATTENTION_REL", 5, x_, attributes);
}

/* Emits ATTENTION_BIAS: q[B,T,H,D] k[B,T,H,D] v[B,T,H,D] table:float[H,height*height] -> o[B,T,H,D]
 * lse:stat[B,H,T]; height>0 width=height T=height*width scale>0 (attributes: scale height width) */
static inline pl_tensor pl_op_attention_bias(struct pl_builder *builder, pl_tensor q, pl_tensor k, pl_tensor v,
                                             pl_tensor table, const char *attributes)
{
    const pl_tensor x_[] = {q, k, v, table};
    return pl_op(builder, "ATTENTION_BIAS", 4, x_, attributes);
}

/* Emits ATTENTION_WINDOW: q[B,T,H,D] k[B,T,H,D] v[B,T,H,D] table_h:float[2*window-1,D]
 * table_w:float[2*window-1,D] pad?:float[2,H,D] -> o[B,T,H,D] lse:stat[B,H,T]; height>0 width>0
 * T=height*width window>0 window<=4096 scale>0 (attributes: scale height width window) */
static inline pl_tensor pl_op_attention_window(struct pl_builder *builder, pl_tensor q, pl_tensor k, pl_tensor v,
                                               pl_tensor table_h, pl_tensor table_w, pl_tensor pad,
                                               const char *attributes)
{
    const pl_tensor x_[] = {q, k, v, table_h, table_w, pad};
    return pl_op(builder, "ATTENTION_WINDOW", 6, x_, attributes);
}

/* Emits CONV: x:float[B,h,w,C] k:=x[O,I,u,v] bias?[O] ->
 * y[B,(h+2*pad-u)/stride+1,(w+2*pad-v)/stride+1,O]; stride>=1 pad>=0 I*groups=C h+2*pad>=u
 * w+2*pad>=v (attributes: stride pad groups) */
static inline pl_tensor pl_op_conv(struct pl_builder *builder, pl_tensor x, pl_tensor k, pl_tensor bias,
                                   const char *attributes)
{
    const pl_tensor x_[] = {x, k, bias};
    return pl_op(builder, "CONV", 3, x_, attributes);
}

/* Emits CONV_DX: dy:float[B,h,w,O] k:=dy[O,I,u,v] bias?[I*groups] -> dx[B,H,W,I*groups]; stride>=1
 * pad>=0 H+2*pad>=u W+2*pad>=v (H+2*pad-u)/stride+1=h (W+2*pad-v)/stride+1=w (attributes: stride
 * pad groups H W) */
static inline pl_tensor pl_op_conv_dx(struct pl_builder *builder, pl_tensor dy, pl_tensor k, pl_tensor bias,
                                      const char *attributes)
{
    const pl_tensor x_[] = {dy, k, bias};
    return pl_op(builder, "CONV_DX", 3, x_, attributes);
}

/* Emits EMBEDDING: ids:i32[...] table[V,C] -> y:=table[...,C]; padding>=0 padding<=V+vocabulary
 * (attributes: padding) */
static inline pl_tensor pl_op_embedding(struct pl_builder *builder, pl_tensor ids, pl_tensor table,
                                        const char *attributes)
{
    const pl_tensor x_[] = {ids, table};
    return pl_op(builder, "EMBEDDING", 2, x_, attributes);
}

/* Emits REPLACE_ROWS: x[B,T,C] index:i32[B,T] y?:=x[...,N,C] -> z[B,T,C] */
static inline pl_tensor pl_op_replace_rows(struct pl_builder *builder, pl_tensor x, pl_tensor index, pl_tensor y)
{
    const pl_tensor x_[] = {x, index, y};
    return pl_op(builder, "REPLACE_ROWS", 3, x_, NULL);
}

/* Emits SHIFT_LABELS: labels:i32[B,T] -> y[B,T] */
static inline pl_tensor pl_op_shift_labels(struct pl_builder *builder, pl_tensor labels)
{
    const pl_tensor x_[] = {labels};
    return pl_op(builder, "SHIFT_LABELS", 1, x_, NULL);
}

/* Emits LABELLED_FIRST: labels:i32[N] -> labels[N] index[N] position[N] */
static inline pl_tensor pl_op_labelled_first(struct pl_builder *builder, pl_tensor labels)
{
    const pl_tensor x_[] = {labels};
    return pl_op(builder, "LABELLED_FIRST", 1, x_, NULL);
}

/* Emits USED_FIRST: index:i32[B,T] -> used[room]; blocks>0 rows>0 room>=B*blocks room<=2147483647
 * first>=0 first<=blocks first<=first*first_rows (attributes: blocks rows first first_rows room) */
static inline pl_tensor pl_op_used_first(struct pl_builder *builder, pl_tensor index, const char *attributes)
{
    const pl_tensor x_[] = {index};
    return pl_op(builder, "USED_FIRST", 1, x_, attributes);
}

/* Emits XENT_JOIN: stats:float[...,P] labels:i32 inv_count:f32[] -> loss:stat[]; #labels*P=#stats
 * P%2=0 */
static inline pl_tensor pl_op_xent_join(struct pl_builder *builder, pl_tensor stats, pl_tensor labels,
                                        pl_tensor inv_count)
{
    const pl_tensor x_[] = {stats, labels, inv_count};
    return pl_op(builder, "XENT_JOIN", 3, x_, NULL);
}

/* Emits ADD: a b -> y */
static inline pl_tensor pl_op_add(struct pl_builder *builder, pl_tensor a, pl_tensor b)
{
    const pl_tensor x_[] = {a, b};
    return pl_op(builder, "ADD", 2, x_, NULL);
}

/* Emits MUL: a b -> y */
static inline pl_tensor pl_op_mul(struct pl_builder *builder, pl_tensor a, pl_tensor b)
{
    const pl_tensor x_[] = {a, b};
    return pl_op(builder, "MUL", 2, x_, NULL);
}

/* Emits SCALE: x[...] -> y[...] (attributes: value) */
static inline pl_tensor pl_op_scale(struct pl_builder *builder, pl_tensor x, const char *attributes)
{
    const pl_tensor x_[] = {x};
    return pl_op(builder, "SCALE", 1, x_, attributes);
}

/* Emits SUM: x -> y:stat[] */
static inline pl_tensor pl_op_sum(struct pl_builder *builder, pl_tensor x)
{
    const pl_tensor x_[] = {x};
    return pl_op(builder, "SUM", 1, x_, NULL);
}

/* Emits ACCUMULATE: x[...] acc[...] -> y:=acc[...] */
static inline pl_tensor pl_op_accumulate(struct pl_builder *builder, pl_tensor x)
{
    const pl_tensor x_[] = {x};
    return pl_op(builder, "ACCUMULATE", 1, x_, NULL);
}

/* Emits CONCAT: a b? c? d? e? f? g? h? -> y (attributes: axis) */
static inline pl_tensor pl_op_concat(struct pl_builder *builder, pl_tensor a, pl_tensor b, pl_tensor c, pl_tensor d,
                                     pl_tensor e, pl_tensor f, pl_tensor g, pl_tensor h, const char *attributes)
{
    const pl_tensor x_[] = {a, b, c, d, e, f, g, h};
    return pl_op(builder, "CONCAT", 8, x_, attributes);
}

/* Emits PAD: x -> y (attributes: before after) */
static inline pl_tensor pl_op_pad(struct pl_builder *builder, pl_tensor x, const char *attributes)
{
    const pl_tensor x_[] = {x};
    return pl_op(builder, "PAD", 1, x_, attributes);
}

/* Emits GATHER: x[B,N,C] index:i32[B,M] inverse?:i32[B,N] -> y[B,M,C] */
static inline pl_tensor pl_op_gather(struct pl_builder *builder, pl_tensor x, pl_tensor index, pl_tensor inverse)
{
    const pl_tensor x_[] = {x, index, inverse};
    return pl_op(builder, "GATHER", 3, x_, NULL);
}

/* Emits SCATTER_ADD: y[B,M,C] index:i32[B,M] acc? -> x[B,rows,C]; rows>0 (attributes: rows) */
static inline pl_tensor pl_op_scatter_add(struct pl_builder *builder, pl_tensor y, pl_tensor index,
                                          const char *attributes)
{
    const pl_tensor x_[] = {y, index};
    return pl_op(builder, "SCATTER_ADD", 2, x_, attributes);
}

/* Emits TOPK: x:float[...,N] -> index:i32[...,k]; k>=1 k<=N N<=2147483647 (attributes: k) */
static inline pl_tensor pl_op_topk(struct pl_builder *builder, pl_tensor x, const char *attributes)
{
    const pl_tensor x_[] = {x};
    return pl_op(builder, "TOPK", 1, x_, attributes);
}

/* Emits ALLOCATE: score:float[R,F] ranges:i32[R,P,2] places:i32[R,P,3] positions:i32[B,T,3]
 * index:i32[B,T] -> slots:i32[R,images*tokens,3] at:i32[B,T,3]; images>0 tokens>0 most>0 most<=1024
 * merge>0 P=F*merge*merge B%R=0 (attributes: images tokens most merge) */
static inline pl_tensor pl_op_allocate(struct pl_builder *builder, pl_tensor score, pl_tensor ranges,
                                       pl_tensor places, pl_tensor positions, pl_tensor index, const char *attributes)
{
    const pl_tensor x_[] = {score, ranges, places, positions, index};
    return pl_op(builder, "ALLOCATE", 5, x_, attributes);
}

/* Emits EXPERT_ROWS: index:i32[R,k] -> position[R,k] offsets[experts+1]; experts>0 (attributes:
 * experts) */
static inline pl_tensor pl_op_expert_rows(struct pl_builder *builder, pl_tensor index, const char *attributes)
{
    const pl_tensor x_[] = {index};
    return pl_op(builder, "EXPERT_ROWS", 1, x_, attributes);
}

/* Emits DISPATCH: x[R,C] position:i32[R,k] -> y[R*k,C] */
static inline pl_tensor pl_op_dispatch(struct pl_builder *builder, pl_tensor x, pl_tensor position)
{
    const pl_tensor x_[] = {x, position};
    return pl_op(builder, "DISPATCH", 2, x_, NULL);
}

/* Emits COMBINE: y[M,C] position:i32[R,k] weight?:=y[R,k] -> x[R,C]; M=R*k */
static inline pl_tensor pl_op_combine(struct pl_builder *builder, pl_tensor y, pl_tensor position, pl_tensor weight)
{
    const pl_tensor x_[] = {y, position, weight};
    return pl_op(builder, "COMBINE", 3, x_, NULL);
}

/* Emits EXPERT_LOAD: logits:float[R,E] index:i32[R,k] ranges?:i32[R,2] -> chance:stat[R/rows,E]
 * load:stat[R/rows,E]; rows>0 R%rows=0 tokens>0 (attributes: rows tokens) */
static inline pl_tensor pl_op_expert_load(struct pl_builder *builder, pl_tensor logits, pl_tensor index,
                                          pl_tensor ranges, const char *attributes)
{
    const pl_tensor x_[] = {logits, index, ranges};
    return pl_op(builder, "EXPERT_LOAD", 3, x_, attributes);
}

/* Emits BALANCE: chance:float[G,E] load:=chance[G,E] -> loss:stat[]; k>0 (attributes: k) */
static inline pl_tensor pl_op_balance(struct pl_builder *builder, pl_tensor chance, pl_tensor load,
                                      const char *attributes)
{
    const pl_tensor x_[] = {chance, load};
    return pl_op(builder, "BALANCE", 2, x_, attributes);
}

/* Emits RESIZE: x[B,h,w,C] -> y[B,H,W,C]; H>0 W>0 (attributes: H W align_corners) */
static inline pl_tensor pl_op_resize(struct pl_builder *builder, pl_tensor x, const char *attributes)
{
    const pl_tensor x_[] = {x};
    return pl_op(builder, "RESIZE", 1, x_, attributes);
}

/* Emits AVGPOOL: x[B,h,w,C] -> y (attributes: k stride pad count_pad adaptive H W) */
static inline pl_tensor pl_op_avgpool(struct pl_builder *builder, pl_tensor x, const char *attributes)
{
    const pl_tensor x_[] = {x};
    return pl_op(builder, "AVGPOOL", 1, x_, attributes);
}

/* Emits MAXPOOL: x[B,h,w,C] -> y[B,h/size,w/size,C]; size>0 h>=size w>=size (attributes: size) */
static inline pl_tensor pl_op_maxpool(struct pl_builder *builder, pl_tensor x, const char *attributes)
{
    const pl_tensor x_[] = {x};
    return pl_op(builder, "MAXPOOL", 1, x_, attributes);
}

/* Emits BATCHNORM: x[B,H,W,C] w[C] b[C] -> y[B,H,W,C] mean:stat[B/group,C] rstd:stat[B/group,C];
 * group>0 B%group=0 (attributes: group eps) */
static inline pl_tensor pl_op_batchnorm(struct pl_builder *builder, pl_tensor x, pl_tensor w, pl_tensor b,
                                        const char *attributes)
{
    const pl_tensor x_[] = {x, w, b};
    return pl_op(builder, "BATCHNORM", 3, x_, attributes);
}

/* Emits BATCHNORM_FROZEN: x[B,H,W,C] w[C] b[C] mean[C] var[C] -> y[B,H,W,C] (attributes: eps) */
static inline pl_tensor pl_op_batchnorm_frozen(struct pl_builder *builder, pl_tensor x, pl_tensor w, pl_tensor b,
                                               pl_tensor mean, pl_tensor var, const char *attributes)
{
    const pl_tensor x_[] = {x, w, b, mean, var};
    return pl_op(builder, "BATCHNORM_FROZEN", 5, x_, attributes);
}

/* Emits WINDOW: x[B,h,w,C] -> y[B*((h+size-1)/size)*((w+size-1)/size),size,size,C]; size>0
 * (attributes: size) */
static inline pl_tensor pl_op_window(struct pl_builder *builder, pl_tensor x, const char *attributes)
{
    const pl_tensor x_[] = {x};
    return pl_op(builder, "WINDOW", 1, x_, attributes);
}

/* Emits UNWINDOW: windows[N,size,size,C] -> y[N/((H+size-1)/size*((W+size-1)/size)),H,W,C]; size>0
 * H>0 W>0 N%((H+size-1)/size*((W+size-1)/size))=0 (attributes: size H W) */
static inline pl_tensor pl_op_unwindow(struct pl_builder *builder, pl_tensor windows, const char *attributes)
{
    const pl_tensor x_[] = {windows};
    return pl_op(builder, "UNWINDOW", 1, x_, attributes);
}

/* Emits FOURIER: coords[...,2] G[2,F] -> y:dtype[...,2*F] (attributes: dtype) */
static inline pl_tensor pl_op_fourier(struct pl_builder *builder, pl_tensor coords, pl_tensor G,
                                      const char *attributes)
{
    const pl_tensor x_[] = {coords, G};
    return pl_op(builder, "FOURIER", 2, x_, attributes);
}

/* Emits STRUCTURE_LOSS: logits:float[N,1,h,w] target:u8[N,h,(w+63)/64*8] valid:i32[N,2]
 * inv_count:f32[] -> loss:stat[] statistics:stat[N,4] weights:stat[N]; size%2=1 size>0 size<64
 * edge>=0 bce_edge>=0 smooth>=0 (attributes: edge bce_edge smooth size) */
static inline pl_tensor pl_op_structure_loss(struct pl_builder *builder, pl_tensor logits, pl_tensor target,
                                             pl_tensor valid, pl_tensor inv_count, const char *attributes)
{
    const pl_tensor x_[] = {logits, target, valid, inv_count};
    return pl_op(builder, "STRUCTURE_LOSS", 4, x_, attributes);
}

/* Emits SCORE_LOSS: logits:float[N,K,h,w] scores:float[N,K] object:float[N,1]
 * target:u8[N,h,(w+63)/64*8] valid:i32[N,2] inv_count:f32[] -> loss:stat[] slopes:stat[N,K+1]
 * within:i32[N,2]; iou>=0 object>=0 (attributes: iou object) */
static inline pl_tensor pl_op_score_loss(struct pl_builder *builder, pl_tensor logits, pl_tensor scores,
                                         pl_tensor object, pl_tensor target, pl_tensor valid, pl_tensor inv_count,
                                         const char *attributes)
{
    const pl_tensor x_[] = {logits, scores, object, target, valid, inv_count};
    return pl_op(builder, "SCORE_LOSS", 6, x_, attributes);
}

/* Emits STABILITY: logits:float[N,K,h,w] scores:float[N,K] -> y[N,K]; delta>=0 (attributes: delta
 * threshold) */
static inline pl_tensor pl_op_stability(struct pl_builder *builder, pl_tensor logits, pl_tensor scores,
                                        const char *attributes)
{
    const pl_tensor x_[] = {logits, scores};
    return pl_op(builder, "STABILITY", 2, x_, attributes);
}

/* Emits PIXELS: x:u8[...]! table:f32[C,256]! -> y:dtype[...]; plane>0 #x%(C*plane)=0 (attributes:
 * plane dtype) */
static inline pl_tensor pl_op_pixels(struct pl_builder *builder, pl_tensor x, pl_tensor table, const char *attributes)
{
    const pl_tensor x_[] = {x, table};
    return pl_op(builder, "PIXELS", 2, x_, attributes);
}

/* Emits MASK_PICK: logits:float[N,K,h,w] scores[N,K] into?:=logits[N,h,w] -> y[N,h,w] */
static inline pl_tensor pl_op_mask_pick(struct pl_builder *builder, pl_tensor logits, pl_tensor scores)
{
    const pl_tensor x_[] = {logits, scores};
    return pl_op(builder, "MASK_PICK", 2, x_, NULL);
}

/* Emits REPEAT: x[R,...] like -> y */
static inline pl_tensor pl_op_repeat(struct pl_builder *builder, pl_tensor x, pl_tensor like)
{
    const pl_tensor x_[] = {x, like};
    return pl_op(builder, "REPEAT", 2, x_, NULL);
}

#endif
