/*
 * test_config.c: the configuration: defaults, sources and their precedence, every kind of error
 * with key, value and line, and the round trip through YAML. The learning-rate schedules, which the
 * configuration names, are tested here, too.
 */
#include <signal.h>

#include "data/text/tokens.h"
#include "models/model.h"
#include "config/config_rows.h"
#include "data/text/conversations.h"
#include "io/temporary.h"
#include "train/trainer.h"

#include "harness.h"

static void assert_has(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("\"%s\" is not in \"%s\"", part, text);
}

/* Reads text that must be rejected, and checks the message. */
static void refuses(const char *yaml, const char *part, const char *other)
{
    struct config c;
    struct error e = {0};
    config_init(&c);
    int rc = config_read_text(&c, yaml, "run.yaml", &e);
    if (!rc) rc = config_check(&c, 0, &e);
    if (rc != PL_USAGE) fail_msg("accepted: %s", yaml);
    assert_int_equal(e.code, PL_USAGE);
    assert_has(e.text, part);
    assert_has(e.text, other);
    config_free(&c);
}

static void refuses_set(const char *assignment, const char *part)
{
    struct config c;
    struct error e = {0};
    config_init(&c);
    if (config_set(&c, assignment, &e) != PL_USAGE) fail_msg("accepted: %s", assignment);
    assert_has(e.text, part);
    config_free(&c);
}

static void accepts_set(struct config *c, const char *assignment)
{
    struct error e = {0};
    if (config_set(c, assignment, &e)) fail_msg("%s", e.text);
}

TEST(test_defaults)
{
    struct config c;
    config_init(&c);
    assert_null(c.model_path);
    assert_int_equal(c.model_freeze.n, 0);
    assert_int_equal(c.data_format, FORMAT_TOKENS);
    assert_int_equal(c.data_sequence, 256);
    assert_true(c.data_shuffle);
    assert_int_equal(c.data_token_dtype, TOKENS_AUTO);
    assert_int_equal(c.train_steps, 0);
    assert_int_equal(c.train_effective_batch, 8);
    assert_true(c.train_learning_rate == 1e-4 && c.train_beta1 == 0.9 && c.train_beta2 == 0.999);
    assert_true(c.train_eps == 1e-8 && c.train_weight_decay == 0.01 && c.train_clip_norm == 0);
    assert_int_equal(c.train_schedule, SCHEDULE_CONSTANT);
    assert_int_equal(c.train_keep, 2);
    assert_true(c.train_keep_best && c.train_layer_decay == 1 && !c.train_groups.n && !c.train_milestones.n);
    assert_int_equal(c.memory_budget.kind, BUDGET_NONE);
    assert_int_equal(config_micro_batch(&c), 0);
    assert_false(c.memory_offload.chosen);
    assert_int_equal(c.memory_host_budget.kind, BUDGET_AUTO);
    assert_int_equal(c.device_kind, ON_AUTO);
    assert_false(c.device_deterministic);
    assert_false(config_given(&c, KEY_train_keep));
    config_free(&c);
}

static const char everything[] =
    "model:\n"
    "  path: models/small\n"
    "  vision_tower: models/clip\n"
    "  decoder: prompted\n"
    "  modalities: {T1: {size: [8, 8, 8], patch: [4, 4, 4], to: tower}}\n"
    "  freeze: ['model.embed*', \"*.norm.weight\"]\n"
    "  bn_group: 2\n"
    "  router_group: 4\n"
    "  dropout: 0.0\n"
    "  head: classes\n"
    "  classes: [cat, 'a dog, or two']\n"
    "adapter:\n"
    "  path: adapters/first\n"
    "  target_modules: '.*[qv]_proj'\n"
    "  exclude_modules: [lm_head, layers.0.q_proj]\n"
    "  r: 4\n"
    "  lora_alpha: 16\n"
    "  lora_dropout: 0.1\n"
    "  modules_to_save: [lm_head]\n"
    "  bias: lora_only\n"
    "  use_rslora: true\n"
    "  use_dora: true\n"
    "  rank_pattern: {q_proj: 2, 'layers.1.v_proj': 3}\n"
    "  alpha_pattern: {q_proj: 2.5}\n"
    "  layers_to_transform: [0, 2]\n"
    "  layers_pattern: layers\n"
    "  init_lora_weights: gaussian\n"
    "data:\n"
    "  format: csv\n"
    "  train: data/*.npy\n"
    "  validation: [v/a.bin, 'v/b,c.bin']\n"
    "  sequence: 128\n"
    "  shuffle: false\n"
    "  token_dtype: int32\n"
    "  tokenizer: models/small/tokenizer.json\n"
    "  template: chatml\n"
    "  chat_template_kwargs: {enable_thinking: false, effort: [1, x]}\n"
    "  system: 'Be kind, and brief'\n"
    "  train_on: last\n"
    "  packing: false\n"
    "  too_long: cut\n"
    "  max_images: 0\n"
    "  too_many_images: split\n"
    "  outside_images: true\n"
    "  max_frames: 32\n"
    "  frames: 8\n"
    "  fps: 0.5\n"
    "  tokens_per_frame: 16\n"
    "  max_volumes: 2\n"
    "  max_patches: 4096\n"
    "  min_pixels: 3136\n"
    "  max_pixels: 100352\n"
    "  store: stores/chats\n"
    "  images: images\n"
    "  masks: labels\n"
    "  validation_images: test/images\n"
    "  validation_masks: test/labels\n"
    "  image_prefix: img_\n"
    "  image_suffix: _0000\n"
    "  mask_prefix: seg_\n"
    "  mask_suffix: _segmentation\n"
    "  mask_reads: answer\n"
    "  queries: texts.csv\n"
    "  validation_queries: more.json\n"
    "  max_queries: 3\n"
    "  holdout: 0\n"
    "  max_samples: 0\n"
    "  split_seed: 3\n"
    "  train_list: train.txt\n"
    "  validation_list: val.txt\n"
    "  train_match: 'a*'\n"
    "  validation_match: 'b*'\n"
    "  train_split: train\n"
    "  validation_split: val\n"
    "  image_column: image\n"
    "  label_column: kind\n"
    "  mask_column: label\n"
    "  split_column: part\n"
    "  labels: classes\n"
    "  threshold: 100\n"
    "  ignore: 255\n"
    "  categories: [cat, '7']\n"
    "  crowds: true\n"
    "  range: window\n"
    "  window: [100, 3000]\n"
    "  slice_axis: sagittal\n"
    "  slices: all\n"
    "  neighbours: true\n"
    "  modalities: [2, 0, 1]\n"
    "  volume_cache: /scratch/volumes\n"
    "  percentiles: [1, 99]\n"
    "  image_size: 512\n"
    "  max_masks: 16\n"
    "  strategy: diverse\n"
    "  min_iou: 0.9\n"
    "  min_stability: 0.95\n"
    "  area: [0.001, 0.9]\n"
    "  flip: 0.5\n"
    "  scale: 0.75\n"
    "  crop: 0.5\n"
    "  flip_vertical: 0.5\n"
    "  turn: 0.25\n"
    "  rotate: 15\n"
    "  brightness: 0.1\n"
    "  contrast: 0.2\n"
    "  gamma: 0.3\n"
    "  noise: 0.02\n"
    "  threads: 4\n"
    "  prefetch: 8\n"
    "  sample_memory: 32\n"
    "  embeddings: off\n"
    "  max_bad: 0.01\n"
    "prompts: {iterations: 8, box: 0.25, jitter: 0.2}\n"
    "loss: {preset: equal-weights, focal: 10, dice: 2, iou: 0.5, alpha: 0.5, gamma: 1.5, smooth: 1e-3, object: 0.5, "
    "edge: 4, edge_terms: iou, masks: 2, text: 0.25, classes: 0.75, class_epochs: 5}\n"
    "train: {steps: 1e3, effective_batch: 32, learning_rate: 3e-5, schedule: step, warmup_steps: 10, warmup_ratio: 0, "
    "warmup_shape: log, warmup_start: 0.1, schedule_as: transformers,\n"
    "  milestones: [60, 1e2], step_gamma: 0.2, min_lr_rate: 0, layer_decay: 0.8,\n"
    "  groups: [{match: '*.bias', weight_decay: 0, lr_scale: 2.5}, {match: [a.*, '*b,c'], frozen: true, learning_rate: "
    "null}],\n"
    "  weight_decay: 0.1, no_decay: ['*.bias'], beta1: 0.85, beta2: 0.95, eps: 1.0e-6, momentum: 0.5, clip_norm: 1, "
    "loss_scale: 1024, scale_window: 50, monitor_every: 7, lr_scaling: sqrt, lr_batch: 16,\n"
    "  seed: 9007199254740993, eval_every: 50, eval_samples: 0, eval_batch: 5, eval_max_new: 77, keep_best: false, "
    "best: iou, worst: 3, save_every: 100, keep: 3, out: runs/1}\n"
    "memory: {budget: 1.5GiB, host_budget: 64 GB, micro_batch: 4, precision: f32, recompute: every:3+selective,\n"
    "  optimizer: adamw-bf16, offload: none, head_chunks: 8, mask_chunks: 2, token_chunks: 16, attention_chunks: 4,\n"
    "  encode: 4, fused_step: off, gradients: bf16, allow: [adamw-8bit], saved: plain, bf16_ends: false,\n"
    "  transposed_weights: off, quantize: [{match: 'model.layers.*', form: nf4}, {match: [a, b], form: none},\n"
    "  {match: c, form: fp8}],\n"
    "  modules: [{match: 'model.layers.*', recompute: 'segments:2'}, {match: lm_head, precision: f32}]}\n"
    "parallel: {ranks: 2, per_host: 2, links: \"nvlink4,ib-ndr\", shard: zero-1, group: host, shares: 8, tensor: 2, "
    "tensor_shares: 4, timeout: 30, crowd: true}\n"
    "device: {kind: cpu, threads: 2, deterministic: true, profile: machine.json}\n";

TEST(test_every_key)
{
    struct config c;
    struct error e = {0};
    config_init(&c);
    if (config_read_text(&c, everything, "run.yaml", &e)) fail_msg("%s", e.text);
    assert_string_equal(c.model_path, "models/small");
    assert_string_equal(c.model_vision_tower, "models/clip");
    assert_int_equal(c.model_decoder, DECODER_PROMPTED);
    assert_int_equal(c.model_freeze.n, 2);
    assert_string_equal(c.model_freeze.at[1], "*.norm.weight");
    assert_int_equal(c.model_bn_group, 2);
    assert_int_equal(c.model_router_group, 4);
    assert_int_equal(c.model_dropout, DROPOUT_NONE);
    assert_int_equal(c.model_head, HEAD_CLASSES);
    assert_int_equal(c.model_classes.n, 2);
    assert_string_equal(c.model_classes.at[1], "a dog, or two");
    assert_int_equal(c.data_train.n, 1);
    assert_string_equal(c.data_train.at[0], "data/*.npy");
    assert_int_equal(c.data_validation.n, 2);
    assert_string_equal(c.data_validation.at[1], "v/b,c.bin");
    assert_int_equal(c.data_token_dtype, TOKENS_I32);
    assert_string_equal(c.data_masks, "labels");
    assert_true(c.data_holdout == 0 && c.data_area.low == 0.001 && c.data_area.high == 0.9 && c.data_max_bad == 0.01 &&
                c.data_embeddings == EMBEDDINGS_OFF);
    assert_int_equal(c.data_categories.n, 2);
    assert_true(c.data_slice_axis == 2 && c.data_slices == 1 && c.data_neighbours && c.data_modalities.n == 3 &&
                c.data_modalities.at[0] == 2);
    assert_string_equal(c.data_volume_cache, "/scratch/volumes");
    assert_true(c.data_threshold == 100 && c.data_range == 3 && c.data_window.low == 100 &&
                c.data_window.high == 3000 && c.data_percentiles.high == 99);
    assert_true(c.data_image_size == 512 && c.data_max_masks == 16 && c.data_crowds);
    assert_true(c.prompts_iterations == 8 && c.prompts_box == 0.25);
    assert_true(c.loss_preset == LOSS_EQUAL_WEIGHTS && c.loss_focal == 10 && c.loss_smooth == 1e-3 &&
                c.loss_object == 0.5);
    assert_int_equal(c.train_steps, 1000);
    assert_true(c.train_learning_rate == 3e-5 && c.train_eps == 1e-6 && c.train_clip_norm == 1);
    assert_int_equal(c.train_schedule, SCHEDULE_STEP);
    assert_true(c.train_layer_decay == 0.8);
    assert_int_equal(c.train_groups.n, 2);
    const struct config_group *g = c.train_groups.at;
    assert_int_equal(g[0].match.n, 1);
    assert_string_equal(g[0].match.at[0], "*.bias");
    assert_true(g[0].given[GROUP_lr_scale] && g[0].lr_scale == 2.5 && g[0].given[GROUP_weight_decay] &&
                g[0].weight_decay == 0);
    assert_true(!g[0].given[GROUP_frozen] && !g[0].given[GROUP_learning_rate]);
    assert_int_equal(g[1].match.n, 2);
    assert_string_equal(g[1].match.at[1], "*b,c");
    assert_true(g[1].given[GROUP_frozen] && g[1].frozen && !g[1].given[GROUP_learning_rate]);
    assert_int_equal(c.train_milestones.n, 2);
    assert_true(c.train_milestones.at[0] == 60 && c.train_milestones.at[1] == 100 && c.train_step_gamma == 0.2);
    assert_true(c.train_seed == 9007199254740993LL); /* more digits than a double can hold */
    assert_int_equal(c.memory_budget.kind, BUDGET_BYTES);
    assert_true(c.memory_budget.bytes == 1610612736u && c.memory_host_budget.bytes == 64000000000u);
    assert_int_equal(config_micro_batch(&c), 4);
    assert_string_equal(c.memory_precision.value, "f32");
    assert_true(c.train_loss_scale == 1024 && c.train_scale_window == 50);
    assert_true(c.memory_recompute.chosen && !strcmp(c.memory_recompute.value, "every:3+selective"));
    assert_int_equal(c.memory_modules.n, 2);
    const struct config_module *m = c.memory_modules.at;
    assert_string_equal(m[0].match.at[0], "model.layers.*");
    assert_true(m[0].given[MODULE_recompute] && !strncmp(m[0].recompute.value, "segments:", 9) &&
                !m[0].given[MODULE_precision]);
    assert_true(m[1].given[MODULE_precision] && m[1].precision == MODULE_F32 && !m[1].given[MODULE_recompute]);
    assert_string_equal(c.memory_head_chunks.value, "8");
    assert_string_equal(c.memory_mask_chunks.value, "2");
    assert_string_equal(c.memory_token_chunks.value, "16");
    assert_string_equal(c.memory_attention_chunks.value, "4");
    assert_string_equal(c.memory_encode.value, "4");
    assert_string_equal(c.data_chat_template_kwargs, "{\"enable_thinking\": false, \"effort\": [1, \"x\"]}");
    assert_string_equal(c.data_system, "Be kind, and brief");
    assert_true(c.data_train_on == TRAIN_ON_LAST && !c.data_packing && c.data_too_long == TOO_LONG_CUT);
    assert_true(c.data_max_images == 0 && c.data_too_many_images == TOO_MANY_SPLIT);
    assert_true(c.data_outside_images && c.data_max_frames == 32 && c.data_frames == 8 && c.data_fps == 0.5 &&
                c.data_tokens_per_frame == 16 && c.data_max_volumes == 2);
    assert_string_equal(c.model_modalities,
                        "{\"T1\": {\"size\": [8, 8, 8], \"patch\": [4, 4, 4], \"to\": \"tower\"}}");
    assert_true(c.data_max_patches == 4096 && c.data_min_pixels == 3136 && c.data_max_pixels == 100352);
    assert_true(c.train_eval_samples == 0 && c.train_eval_batch == 5 && c.train_eval_max_new == 77);
    assert_string_equal(c.parallel_shard.value, "optimizer");
    assert_string_equal(c.parallel_group.value, "host");
    assert_string_equal(c.parallel_links, "nvlink4,ib-ndr");
    assert_true(c.parallel_ranks == 2 && c.parallel_per_host == 2 && c.parallel_shares == 8 && c.parallel_tensor == 2 &&
                c.parallel_tensor_shares == 4 && c.parallel_timeout == 30 && c.parallel_crowd);
    assert_int_equal(c.device_kind, ON_CPU);
    assert_int_equal(c.device_threads, 2);
    assert_true(c.device_deterministic);
    assert_string_equal(c.device_profile, "machine.json");
    for (int key = 0; key < CONFIG_KEYS; key++) /* the text above has every key, but only one of each exclusive pair */
        if (!config_given(&c, (enum config_key)key) && key != KEY_model_preset && key != KEY_train_epochs &&
            key != KEY_train_step_size)
            fail_msg("%s is not tested", config_key_name((enum config_key)key));
    assert_int_equal(
        config_check(&c, CONFIG_NEEDS_MODEL | CONFIG_NEEDS_DATA | CONFIG_NEEDS_TRAIN | CONFIG_OPTIONS_ONLY, &e), PL_OK);
    config_free(&c);
}

/* Writes c, reads the text into a fresh struct, and compares all keys. */
static void round_trip(const struct config *c)
{
    struct config again;
    struct error e = {0};
    struct text text = {0}, second = {0};
    config_write(c, &text);
    config_init(&again);
    if (config_read_text(&again, text.at, "config.yaml", &e)) fail_msg("%s\n%s", e.text, text.at);
    for (int key = 0; key < CONFIG_KEYS; key++)
        if (!config_same(c, &again, (enum config_key)key))
            fail_msg("%s differs after\n%s", config_key_name((enum config_key)key), text.at);
    config_write(&again, &second);
    assert_string_equal(text.at, second.at);
    text_free(&text);
    text_free(&second);
    config_free(&again);
}

TEST(test_round_trip)
{
    struct config c, d;
    struct error e = {0};
    config_init(&c);
    round_trip(&c);
    assert_int_equal(config_read_text(&c, everything, "run.yaml", &e), PL_OK);
    round_trip(&c);
    accepts_set(&c, "train.learning_rate=0.1234567890123456789");
    accepts_set(&c, "model.path=\"odd: \\\"name\\\" # \\\\ \\t \u00e9\"");
    accepts_set(&c, "train.out=123");
    accepts_set(&c, "train.epochs=3");
    accepts_set(&c, "memory.budget=auto");
    accepts_set(&c, "data.train=['*', '-', 'null', ' a ', '{x,y}']");
    accepts_set(&c, "train.step_size=7");
    assert_int_equal(c.train_milestones.n, 0);
    round_trip(&c);

    accepts_set(&c,
                "train.groups=[{match: '*', learning_rate: 0.1234567890123456789, weight_decay: 0, frozen: false}]");
    round_trip(&c);

    config_init(&d);
    assert_false(config_same(&c, &d, KEY_train_epochs));
    assert_false(config_same(&c, &d, KEY_train_groups));
    assert_false(config_same(&c, &d, KEY_memory_allow));
    accepts_set(&c, "memory.allow=[]");
    assert_true(config_same(&c, &d, KEY_memory_allow));
    config_free(&c);
    config_free(&d);
}

TEST(test_set)
{
    struct config c;
    struct error e = {0};
    config_init(&c);
    assert_int_equal(config_read_text(&c, "train: {steps: 5, keep: 4}\nmodel: {path: a}\n", "run.yaml", &e), PL_OK);
    accepts_set(&c, "train.keep=7");
    assert_int_equal(c.train_keep, 7);
    accepts_set(&c, "train.keep=null");
    assert_int_equal(c.train_keep, 2);
    accepts_set(&c, "data.train=*.npy, x/{a,b}.bin ,y");
    assert_int_equal(c.data_train.n, 3);
    assert_string_equal(c.data_train.at[0], "*.npy");
    assert_string_equal(c.data_train.at[1], "x/{a,b}.bin");
    accepts_set(&c, "model.freeze=[a.*, \"*b\"]");
    assert_int_equal(c.model_freeze.n, 2);
    accepts_set(&c, "model.freeze=[]");
    assert_int_equal(c.model_freeze.n, 0);
    accepts_set(&c, "train.groups=[{match: 'a.*, b.*', lr_scale: 2}]");
    assert_true(c.train_groups.n == 1 && c.train_groups.at[0].match.n == 2);
    accepts_set(&c, "train.groups=[]");
    assert_int_equal(c.train_groups.n, 0);
    accepts_set(&c, "train.milestones=30");
    assert_true(c.train_milestones.n == 1 && c.train_milestones.at[0] == 30);
    accepts_set(&c, "train.milestones=30, 40,50");
    assert_true(c.train_milestones.n == 3 && c.train_milestones.at[2] == 50);
    accepts_set(&c, "train.milestones=[30, 60]");
    assert_true(c.train_milestones.n == 2 && c.train_milestones.at[1] == 60);
    accepts_set(&c, "train.milestones=null");
    assert_int_equal(c.train_milestones.n, 0);
    accepts_set(&c, "device=cpu");
    assert_int_equal(c.device_kind, ON_CPU);
    accepts_set(&c, "device={kind: auto, threads: 3}");
    assert_int_equal(c.device_threads, 3);
    accepts_set(&c, "train.out=a=b");
    assert_string_equal(c.train_out, "a=b");

    /* one key of an exclusive pair replaces the other one from the file */
    accepts_set(&c, "train.epochs=2");
    accepts_set(&c, "model.preset=tiny");
    assert_int_equal(c.train_steps, 0);
    assert_null(c.model_path);
    assert_int_equal(config_check(&c, CONFIG_NEEDS_MODEL | CONFIG_NEEDS_TRAIN, &e), PL_OK);

    assert_int_equal(config_set_memory(&c, "8GiB", &e), PL_OK);
    assert_true(c.memory_budget.kind == BUDGET_BYTES && c.memory_budget.bytes == 8ull << 30);
    assert_int_equal(config_set_memory(&c, "123456", &e), PL_OK);
    assert_true(c.memory_budget.bytes == 123456);
    assert_int_equal(config_set_memory(&c, "auto", &e), PL_OK);
    assert_int_equal(c.memory_budget.kind, BUDGET_AUTO);
    assert_int_equal(config_set_memory(&c, "lots", &e), PL_USAGE);
    assert_has(e.text, "--memory lots");
    assert_has(e.text, "a size above 0 such as 8GiB, or none or auto");
    assert_int_equal(config_set_memory(&c, "0", &e), PL_USAGE);
    config_free(&c);
}

/* Keys for parts of the data, and contradictions between them. */
TEST(test_split_errors)
{
    refuses("data: {format: sa1b, train: a.tar, validation: b.tar, holdout: 0.1}\n",
            "both data.holdout and data.validation", "run.yaml:1");
    refuses("data: {format: sa1b, train: a.tar, validation_list: v.txt}\n",
            "data.validation_list is given and data.train_list is not", "both trained and evaluated on");
    refuses("data: {format: sa1b, train: a.tar, validation_match: \"b*\"}\n",
            "data.validation_match is given and data.train_match is not", "data.validation");
    refuses("data: {format: csv, train: a.csv, validation_split: val}\n",
            "data.validation_split is given and data.train_split is not", "data.validation");
    refuses("data: {format: sa1b, train: a.tar, train_split: train}\n",
            "data.train_split is given, but data.format is sa1b", "expected csv");
    refuses("data: {format: tokens, train: a.bin, holdout: 0.1}\n", "data.holdout is given, but data.format is tokens",
            "expected text, conversations, sa1b, coco");
    refuses_set("data.holdout=1", "data.holdout");
    refuses_set("data.holdout=-0.5", "data.holdout");
}

TEST(test_set_errors)
{
    refuses_set("", "no `=`");
    refuses_set("train.steps", "no `=`");
    refuses_set("=5", "no key");
    refuses_set("train.steps=", "no value");
    refuses_set("train.stepz=5", "did you mean train.steps?");
    refuses_set("train=5", "a map of keys");
    refuses_set("trian.steps=5", "did you mean train.steps?");
    refuses_set("model.paht=x", "did you mean model.path?");
    refuses_set("memory.activation_checkpointing=true", "did you mean memory.recompute?");
    refuses_set("data.val=x.json", "did you mean data.validation?");
    refuses_set("train.steps=5.5", "the number 5.5");
    refuses_set("train.loss_scale=0", "auto or a whole number from 1 to 1099511627776");
    refuses_set("train.steps=[1, 2]", "found a list");
    refuses_set("model.freeze=[*a]", "need quotes");
    refuses_set("model.freeze=[[a]]", "a list of strings");
    refuses_set("memory.allow=[x]", "adamw-8bit, adamw-bf16 or nf4");
    refuses_set("memory.encode=0", "expected auto, inline, all or a number");
    refuses_set("memory.encode=2x", "expected auto, inline, all or a number");
    refuses_set("memory.quantize=fp4", "expected none, nf4, fp8, or a list of rules with match and form");
    refuses_set("memory.quantize=[{match: a}]", "memory.quantize[0]: only match is given, expected form too");
    refuses_set("memory.quantize=[{match: a, form: int8}]",
                "memory.quantize[0].form: found the string \"int8\", expected none, nf4 or fp8");
    refuses_set("memory.load_in_4bit=true", "did you mean memory.quantize?");
    refuses_set("train.groups=x", "a list of maps");
    refuses_set("train.groups=[x]", "train.groups[0]: found");
    refuses_set("train.groups=[{match: a, lr_scale: 1}, {match: b, lr_scal: 2}]",
                "train.groups[1].lr_scal; did you mean lr_scale?");
    refuses_set("train.groups=[{mach: a, lr_scale: 1}]", "train.groups[0].mach; did you mean match?");
    refuses_set("train.groups=[{match: a, lr_scale: -1}]",
                "train.groups[0].lr_scale: found the number -1, expected a number, 0 or more");
    refuses_set("train.groups=[{match: a, frozen: 1}]",
                "train.groups[0].frozen: found the number 1, expected true or false");
    refuses_set("train.groups=[{match: [[a]], frozen: true}]", "train.groups[0].match: found a list");
    refuses_set("train.groups=[{lr_scale: 1}]", "train.groups[0]: match is not given");
    refuses_set("train.groups=[{match: a}]", "train.groups[0]: only match is given");
    refuses_set("train.groups=[{match: a, learning_rate: 1, lr_scale: 1}]", "both learning_rate and lr_scale");
    refuses_set("train.milestones=[1, x]", "a list of whole numbers from 1");
    refuses_set("train.milestones=[0]", "a list of whole numbers from 1");
    refuses_set("train.milestones=,", "a list of whole numbers");
    refuses_set("train.milestones={a: 1}", "found a map");
    refuses_set("steps=5", "did you mean train.steps?");
    refuses_set("train.batch_size=4", "did you mean train.effective_batch?");
    refuses_set("train.gradient_accumulation_steps=4", "did you mean memory.micro_batch?");
    refuses_set("train.frobnicate=4", "unknown key train.frobnicate; `plimsoll train --help` lists them");
    refuses_set("train.groups=[{match: a, lr: 1}]", "expected match, learning_rate, lr_scale, weight_decay or frozen");
}

TEST(test_errors)
{
    refuses("train:\n  steps: 1\n  learning_rat: 1\n", "run.yaml:3", "did you mean train.learning_rate?");
    refuses("train: {precision: f32}\n", "run.yaml:1", "did you mean memory.precision?");
    refuses("\n\ntrian: {steps: 1}\n", "run.yaml:3", "did you mean train?");
    refuses("learning_rate: 1\n", "run.yaml:1", "did you mean train.learning_rate?");
    refuses("train.steps: 1\n", "run.yaml:1", "train: {steps: ...}");
    refuses("train: {lr: 1}\n", "run.yaml:1", "did you mean train.learning_rate?");
    refuses("lr: 1\n", "run.yaml:1", "did you mean train.learning_rate?");
    refuses("train: {zz: 1}\n", "run.yaml:1: unknown key train.zz", "--help");
    refuses("training: {steps: 1}\n", "run.yaml:1", "did you mean train?");
    refuses("hooks: {steps: 1}\n", "run.yaml:1: unknown key hooks", "--help");
    refuses("losses: {focal: 20}\n", "unknown key losses", "did you mean loss");
    refuses("loss: {alpha: 1.5}\n", "loss.alpha", "1.5");
    refuses("data: {area: [0.5, 0.1]}\n", "data.area", "two numbers");
    refuses("data: {area: 0.5}\n", "data.area", "two numbers");
    refuses("data: {image_sizes: 1024}\n", "unknown key data.image_sizes", "did you mean data.image_size?");
    refuses("train:\n  steps: ten\n", "run.yaml:2: train.steps",
            "\"ten\", expected a whole number from 1 to 2147483647");
    refuses("train:\n  steps: 0\n", "the number 0", "from 1");
    refuses("train: {steps: '5'}\n", "the string \"5\"", "a whole number");
    refuses("train: {beta1: 1}\n", "train.beta1", "at least 0 and below 1");
    refuses("train: {learning_rate: -1}\n", "-1", "0 or more");
    refuses("train: {learning_rate: .nan}\n", "nan", "0 or more");
    refuses("train: {learning_rate: .inf}\n", "inf", "0 or more");
    refuses("train: {schedule: steps}\n", "\"steps\"", "constant, linear, cosine or step");
    refuses("train: {schedule: step}\n", "run.yaml", "neither train.step_size nor train.milestones");
    refuses("train: {schedule: step, step_size: 3, milestones: [4]}\n", "run.yaml:1",
            "both train.step_size and train.milestones");
    refuses("train:\n  schedule: cosine\n  step_size: 3\n", "run.yaml:3: train.step_size", "cosine, expected step");
    refuses("train:\n  milestones: [3]\n", "run.yaml:2: train.milestones", "constant, expected step");
    refuses("train:\n  min_lr_rate: 0.1\n", "run.yaml:2: train.min_lr_rate", "constant, expected linear or cosine");
    refuses("train: {schedule: step, milestones: [5, 5]}\n", "run.yaml:1", "5 comes after a later one or twice");
    refuses("train: {schedule: step, milestones: [5], warmup_steps: 6}\n", "run.yaml:1", "5 comes within the warmup");
    refuses("train:\n  warmup_start: 0.1\n", "run.yaml:2: train.warmup_start", "train.warmup_steps is not set");
    refuses("train: {warmup_shape: log}\n", "run.yaml:1: train.warmup_shape", "train.warmup_steps is not set");
    refuses("train: {schedule: step, step_size: 3, schedule_as: deepspeed}\n", "run.yaml:1: train.schedule_as",
            "step, expected constant, linear or cosine");
    refuses("train: {epochs: 0}\n", "run.yaml:1: train.epochs", "the number 0");
    refuses("train: {warmup_steps: 6, warmup_ratio: 0.1}\n", "run.yaml:1",
            "both train.warmup_steps and train.warmup_ratio are given");
    refuses("train:\n  groups:\n    - match: a\n      lr_scale: 1\n      weight_deca: 2\n",
            "run.yaml:5: unknown key train.groups[0].weight_deca", "did you mean weight_decay?");
    refuses("train:\n  groups:\n  - match: a\n    frozen: true\n  - frozen: false\n", "run.yaml:5: train.groups[1]",
            "match is not given");
    refuses("train:\n  learning_rate: 0\n  groups: [{match: a, learning_rate: 1}]\n",
            "run.yaml:3: train.groups[0].learning_rate", "is 0, expected more");
    refuses("train: {layer_decay: 1.5}\n", "train.layer_decay", "to 1");
    refuses("train: {seed: -1}\n", "train.seed", "0 or more");
    refuses("train: {seed: 9223372036854775808}\n", "train.seed", "9223372036854775808");
    refuses("data: {shuffle: 1}\n", "data.shuffle", "true or false");
    refuses("data: {sequence: 1}\n", "data.sequence", "from 2");
    refuses("memory: {micro_batch: 0}\n", "memory.micro_batch", "auto or a whole number from 1");
    refuses("memory: {micro_batch: automatic}\n", "memory.micro_batch", "auto or");
    refuses("memory: {budget: 8XB}\n", "memory.budget", "8GiB");
    refuses("memory: {host_budget: some}\n", "memory.host_budget", "none");
    refuses("memory: {offload: everything}\n", "run.yaml:1",
            "expected auto, none, or some of optimizer, masters, weights, weights:N, activations");
    refuses("memory: {offload: [weights, none]}\n", "memory.offload", "expected auto, none, or some of optimizer");
    refuses("memory: {offload: [auto, weights]}\n", "memory.offload", "expected auto, none, or some of optimizer");
    refuses("memory: {offload: optimizer+}\n", "memory.offload", "optimizer+");
    refuses("memory: {micro_batch: 9}\n", "run.yaml:1: memory.micro_batch is 9", "train.effective_batch, 8");
    refuses("train:\n  eval_every: 5\n", "run.yaml:2", "data.validation");
    refuses("train:\n  eval_samples: 5\n", "train.eval_samples is given, but data.format is tokens",
            "expected conversations");
    refuses("data: {format: conversations, train: a.jsonl}\ntrain: {eval_samples: 5}\n", "run.yaml:2",
            "no validation data");
    refuses("device: gpu\n", "device.kind", "auto, cpu or cuda");
    refuses("model: {path: ''}\n", "model.path", "a string");
    refuses("model: {path: {a: b}}\n", "a map", "a string");
    refuses("train:\n  steps: 1\n  epochs: 2\n", "run.yaml:3", "both train.steps and train.epochs");
    refuses("model:\n  path: a\n  preset: b\n", "run.yaml:3", "both model.path and model.preset");
    refuses("train: {steps: 1, steps: 2}\n", "run.yaml", "twice");
    refuses("- a\n", "run.yaml", "a list");
    refuses("train: {\n", "run.yaml", "line");
}

TEST(test_needs)
{
    struct config c;
    struct error e = {0};
    config_init(&c);
    assert_int_equal(config_check(&c, 0, &e), PL_OK);
    assert_int_equal(config_check(&c, CONFIG_NEEDS_MODEL, &e), PL_USAGE);
    assert_has(e.text, "neither model.path nor model.preset");
    assert_int_equal(config_check(&c, CONFIG_NEEDS_TRAIN, &e), PL_USAGE);
    assert_has(e.text, "neither train.steps nor train.epochs");
    accepts_set(&c, "train.steps=1");
    assert_int_equal(config_check(&c, CONFIG_NEEDS_TRAIN, &e), PL_USAGE);
    assert_has(e.text, "train.out");
    accepts_set(&c, "data.train=[]");
    assert_int_equal(config_check(&c, CONFIG_NEEDS_DATA, &e), PL_USAGE);
    assert_has(e.text, "data.train");
    /* an empty document and empty sections are valid; a missing file is an error */
    assert_int_equal(config_read_text(&c, "", "run.yaml", &e), PL_OK);
    assert_int_equal(config_read_text(&c, "train:\ndata:\n  sequence:\n", "run.yaml", &e), PL_OK);
    assert_int_equal(config_read(&c, "no/such/run.yaml", &e), PL_USAGE);
    assert_has(e.text, "no/such/run.yaml");
    config_free(&c);
}

TEST(test_help)
{
    struct text t = {0};
    config_help(&t);
    assert_has(t.at, "learning_rate    1e-4");
    assert_has(t.at, "train.groups[]:\n  match");
    assert_has(t.at, "(constant, linear, cosine or step)");
    text_free(&t);
}

/* Values of transformers' LambdaLR functions, by their formulas written out. */
static double factor(enum schedule_kind kind, int64_t step, int64_t warmup, int64_t total)
{
    return schedule_factor(&(struct schedule){.kind = kind, .warmup = warmup, .total = total}, step);
}

TEST(test_schedule)
{
    assert_true(factor(SCHEDULE_CONSTANT, 0, 0, 10) == 1);
    assert_true(factor(SCHEDULE_CONSTANT, 0, 4, 10) == 0);
    assert_true(factor(SCHEDULE_CONSTANT, 3, 4, 10) == 0.75);
    assert_true(factor(SCHEDULE_CONSTANT, 99, 4, 10) == 1);
    assert_true(factor(SCHEDULE_LINEAR, 1, 2, 10) == 0.5);
    assert_true(factor(SCHEDULE_LINEAR, 2, 2, 10) == 1);
    assert_true(factor(SCHEDULE_LINEAR, 6, 2, 10) == 0.5);
    assert_true(factor(SCHEDULE_LINEAR, 10, 2, 10) == 0);
    assert_true(factor(SCHEDULE_LINEAR, 12, 2, 10) == 0);
    assert_true(factor(SCHEDULE_COSINE, 1, 2, 10) == 0.5);
    assert_true(factor(SCHEDULE_COSINE, 2, 2, 10) == 1);
    assert_true(fabs(factor(SCHEDULE_COSINE, 6, 2, 10) - 0.5) < 1e-15);
    assert_true(fabs(factor(SCHEDULE_COSINE, 4, 2, 10) - 0.5 * (1 + sqrt(0.5))) < 1e-15);
    assert_true(fabs(factor(SCHEDULE_COSINE, 10, 2, 10)) < 1e-15);
    /* transformers' cosine_with_min_lr, and the same for a line */
    const struct schedule line = {.kind = SCHEDULE_LINEAR, .warmup = 2, .total = 10, .floor = 0.2};
    const struct schedule curve = {.kind = SCHEDULE_COSINE, .warmup = 2, .total = 10, .floor = 0.2};
    assert_true(schedule_factor(&line, 1) == 0.5 && schedule_factor(&curve, 1) == 0.5);
    assert_true(schedule_factor(&line, 2) == 1 && schedule_factor(&curve, 2) == 1);
    assert_true(fabs(schedule_factor(&line, 6) - 0.6) < 1e-15 && fabs(schedule_factor(&curve, 6) - 0.6) < 1e-15);
    assert_true(fabs(schedule_factor(&line, 10) - 0.2) < 1e-15 && fabs(schedule_factor(&curve, 10) - 0.2) < 1e-15);
    /* a warmup of the whole run is no division by 0 */
    assert_true(factor(SCHEDULE_LINEAR, 3, 3, 3) == 0);
    assert_true(factor(SCHEDULE_COSINE, 3, 3, 3) == 1);
}

/* A warmup from a part of the rate (torch's LinearLR), and one as a logarithm. */
TEST(test_schedule_warmup)
{
    const struct schedule line = {.kind = SCHEDULE_CONSTANT, .warmup = 4, .start = 0.5, .total = 10};
    const struct schedule curve = {.kind = SCHEDULE_CONSTANT, .warmup = 4, .log = true, .total = 10};
    assert_true(schedule_factor(&line, 0) == 0.5 && schedule_factor(&line, 2) == 0.75 &&
                schedule_factor(&line, 4) == 1);
    assert_true(schedule_factor(&curve, 0) == 0 && fabs(schedule_factor(&curve, 1) - 0.5) < 1e-15 &&
                schedule_factor(&curve, 4) == 1);
}

/* What DeepSpeed's own schedulers give (golden/make_schedule.py). */
TEST(test_schedule_deepspeed)
{
    FILE *f = fopen("tests/golden/schedule.txt", "r");
    if (!f) skip(); /* run from the repository's root */
    char name[32], type[16];
    struct schedule s = {.deepspeed = true};
    int steps, runs = 0;
    for (; fscanf(f, "%31s %15s %" SCNd64 " %lf %lf %" SCNd64 " %d", name, type, &s.warmup, &s.start, &s.floor,
                  &s.total, &steps) == 7;
         runs++) {
        s.kind = !strcmp(name, "WarmupLR")        ? SCHEDULE_CONSTANT
                 : !strcmp(name, "WarmupDecayLR") ? SCHEDULE_LINEAR
                                                  : SCHEDULE_COSINE;
        s.log = !strcmp(type, "log");
        for (int i = 0; i < steps; i++) {
            double want;
            assert_int_equal(fscanf(f, "%lf", &want), 1);
            if (fabs(schedule_factor(&s, i) - want) > 1e-15)
                fail_msg("%s, %s, warmup %" PRId64 ": step %d has %.17g, expected %.17g", name, type, s.warmup, i,
                         schedule_factor(&s, i), want);
        }
    }
    fclose(f);
    assert_int_equal(runs, 18);
}

/* Drops by counting: every `every` steps after the warmup, or once per milestone passed. */
TEST(test_schedule_step)
{
    const int64_t milestones[] = {4, 5, 9};
    for (int64_t warmup = 0; warmup < 4; warmup++) {
        struct schedule every = {.kind = SCHEDULE_STEP, .warmup = warmup, .gamma = 0.5, .every = 3};
        struct schedule listed = {.kind = SCHEDULE_STEP, .warmup = warmup, .gamma = 0.5, .milestones = milestones,
                                  .n_milestones = 3};
        double a = 1, b = 1; /* halves are exact */
        for (int64_t step = 0; step < 20; step++) {
            if (step > warmup && (step - warmup) % 3 == 0) a *= 0.5;
            if (step == 4 || step == 5 || step == 9) b *= 0.5;
            double rise = step < warmup ? (double)step / (double)warmup : 1;
            assert_true(schedule_factor(&every, step) == rise * a);
            assert_true(schedule_factor(&listed, step) == rise * b);
        }
    }
    /* a gamma of 0 ends the training, one above 1 raises the learning rate */
    struct schedule end = {.kind = SCHEDULE_STEP, .gamma = 0, .every = 2};
    assert_true(schedule_factor(&end, 1) == 1 && schedule_factor(&end, 2) == 0 && schedule_factor(&end, 9) == 0);
}

TEST(test_signals)
{
    signals_install();
    assert_int_equal(signals_received(), 0);
    raise(SIGTERM);
    assert_int_equal(signals_received(), SIGTERM);
    assert_string_equal(signals_name(signals_received()), "SIGTERM");
    struct sigaction now; /* the next signal of either kind would end the process */
    sigaction(SIGTERM, NULL, &now);
    assert_true(now.sa_handler == temporary_end);
    sigaction(SIGINT, NULL, &now);
    assert_true(now.sa_handler == temporary_end);
}

/* A rejected file sets nothing, not even the keys before the mistake. */
TEST(test_all_or_nothing)
{
    struct config c;
    struct error e = {0};
    config_init(&c);
    assert_int_equal(config_read_text(&c, "train: {steps: 5}\nmodel: {path: a}\n", "run.yaml", &e), PL_OK);
    assert_int_equal(config_read_text(&c, "train: {steps: 7}\nmodel: {path: b}\ndata: {sequence: many}\n", "other.yaml",
                                      &e),
                     PL_USAGE);
    assert_int_equal(c.train_steps, 5);
    assert_string_equal(c.model_path, "a");
    assert_string_equal(c.file, "run.yaml");
    config_free(&c);
}

/* --- keys without effect ---------------------------------------------------------------------- */

/* A model of each kind that column `needs` names. */
static const char *const kinds[][2] = {{"tokens", "llama-tiny"},      {"images", "llava-tiny"},
                                       {"masks", "sam-tiny"},         {"ground", "grounding-tiny"},
                                       {"questions", "prs-med-tiny"}, {"batch_norm", "tinysam-tiny"},
                                       {"head", "clip-vit-b-16"},     {"classes", "clip-vit-b-16"},
                                       {"grids", "Qwen/Qwen2-VL-2B"}, {"experts", "tests/golden/mixtral_balanced"},
                                       {"sizes", "Qwen/Qwen2-VL-2B"}, {"shares", "arr-coc-2b"},
                                       {"modalities", "tests/golden/llava_volumes_t1"},
                                       {"objects", "sam2-tiny"}};

static const char *model_of(const char *words, bool other)
{
    char copy[256];
    snprintf(copy, sizeof copy, "|%s|", words);
    for (size_t i = 0; i < COUNT(kinds); i++) {
        char word[32];
        snprintf(word, sizeof word, "|%s|", kinds[i][0]);
        /* every model but sam takes tokens, and prs_med and tinysam have other kinds too */
        if (other && !strcmp(words, "tokens")) return "sam-tiny";
        if (other ? i < 4 && !strstr(copy, word) : strstr(copy, word) != NULL) return kinds[i][1];
    }
    fail_msg("model=%s: no such kind", words);
    return NULL;
}

static void set_key(struct config *c, enum config_key key, const char *value)
{
    struct error e = {0};
    if (config_assign(c, config_key_name(key), value, &e)) fail_msg("%s", e.text);
}

/* Sets a key to some value other than its default and 0. */
static void set_other(struct config *c, enum config_key key)
{
    static const char *const tries[] = {"x",
                                        "1",
                                        "2",
                                        "7",
                                        "0.5",
                                        "0.25",
                                        "0.1,0.9",
                                        "true",
                                        "false",
                                        "[x]",
                                        "[1]",
                                        "sgd",
                                        "f16",
                                        "{a: 1}",
                                        "[{match: a, precision: f16}]",
                                        "[{match: a, lr_scale: 2}]",
                                        "none",
                                        "1GiB",
                                        "all",
                                        "on",
                                        "host",
                                        "64",
                                        "nf4",
                                        "bf16",
                                        "fp8",
                                        "optimizer"};
    struct config standard;
    config_init(&standard);
    for (int word = 0; word < 12; word++) {
        char words[32];
        struct error e = {0};
        if (config_rows[key].type != ROW_CHOICE) break;
        config_word_at(config_rows[key].allowed, word, words);
        if (!config_assign(c, config_key_name(key), words, &e) && !config_same(c, &standard, key)) goto done;
    }
    for (size_t i = 0; i < COUNT(tries); i++) {
        struct error e = {0};
        if (!config_assign(c, config_key_name(key), tries[i], &e) && !config_same(c, &standard, key)) goto done;
    }
    fail_msg("%s: no value other than its default is tried", config_key_name(key));
done:
    config_free(&standard);
}

enum { PARTS = 16 };
/* Splits `from` at `by` into copies of at most PARTS parts. */
static int split(const char *from, const char *by, char out[PARTS][256])
{
    int n = 0;
    for (const char *end; *from; from = end ? end + strlen(by) : from + strlen(from)) {
        end = strstr(from, by);
        assert_true(n < PARTS);
        snprintf(out[n++], 256, "%.*s", end ? (int)(end - from) : (int)strlen(from), from);
    }
    return n;
}

/* Makes an alternative of `needs` true, or false; also what the key that it names needs itself. */
static void arrange(struct config *c, const char **model, const char *need, bool met)
{
    char name[256], all[PARTS][256], any[PARTS][256];
    strncpy(name, need, sizeof name - 1), name[sizeof name - 1] = 0;
    char *words = strchr(name, '=');
    if (words) *words++ = 0;
    const int key = config_find(name);
    if (!strcmp(name, "model")) { *model = model_of(words, !met); return; }
    if (!strcmp(name, "validation")) { set_key(c, KEY_data_validation, met ? "[x]" : "null"); return; }
    if (key < 0) fail_msg("%s: no such key", name);
    if (!words && !met) set_key(c, (enum config_key)key, config_rows[key].type == ROW_REAL ? "0" : "null");
    else if (!words) set_other(c, (enum config_key)key);
    else {
        char listed[256], each[PARTS][256], word[32];
        const int n = split(words, "|", each);
        snprintf(listed, sizeof listed, "%s", words);
        for (int i = 0; i < n; i++) set_key(c, (enum config_key)key, each[i]); /* every word is a value of the key */
        set_key(c, (enum config_key)key, each[0]);
        for (int i = 0; !met && i < 16; i++) {
            if (config_rows[key].type == ROW_CHOICE) config_word_at(config_rows[key].allowed, i, word);
            else
                snprintf(word, sizeof word, "%s",
                         key == KEY_memory_precision ? "f32"
                         : strstr(listed, "sgd")     ? "adamw-8bit"
                                                     : "sgd");
            if (config_word_index(listed, word) < 0) { set_key(c, (enum config_key)key, word); break; }
        }
    }
    if (!met) return;
    char room[64];
    const int n_all = split(config_needs((enum config_key)key, room), ", ", all);
    for (int i = 0; i < n_all; i++)
        if (split(all[i], " or ", any)) arrange(c, model, any[0], true);
}

static int check_both(const struct config *c, const char *model, struct error *e)
{
    struct model m;
    if (config_check(c, 0, e)) return e->code;
    char *names[] = {(char *)"a", (char *)"b"};
    const struct model_choices head = {.head = HEAD_CLASSES, .classes = names, .n_classes = 2};
    assert_int_equal(strncmp(model, "clip", 4) ? model_find(&m, model, e) : model_preset_with(&m, model, &head, e),
                     PL_OK);
    int rc = config_check_model(c, &m, e);
    model_close(&m);
    return rc;
}

/* Every key is accepted where it has what column `needs` says, and refused by name without any one
 * of them. */
TEST(test_effects)
{
    for (int k = 0; k < CONFIG_KEYS; k++) {
        const enum config_key key = (enum config_key)k;
        char all[PARTS][256], any[PARTS][256], room[64];
        const int n = split(config_needs(key, room), ", ", all);
        for (int broken = -1; broken < n; broken++) {
            const char *model = "llama-tiny";
            struct config c;
            struct error e = {0};
            config_init(&c);
            for (int i = 0; i < n; i++)
                if (i != broken && split(all[i], " or ", any)) arrange(&c, &model, any[0], true);
            for (int j = 0, m = broken < 0 ? 0 : split(all[broken], " or ", any); j < m; j++)
                arrange(&c, &model, any[j], false);
            set_other(&c, key);
            /* false asks for nothing */
            const bool asks = config_rows[k].type != ROW_BOOL || *(bool *)config_member(&c, key);
            check_both(&c, model, &e);
            /* other checks are not meant */
            const bool refused = e.code == PL_USAGE && strstr(e.text, "would have no effect");
            if (broken < 0 && refused) fail_msg("%s with %s: %s", config_rows[k].path, model, e.text);
            if (broken >= 0 && asks && !refused)
                fail_msg("%s without \"%s\" is accepted", config_rows[k].path, all[broken]);
            config_free(&c);
        }
    }
}

TEST(test_effects_of_runs)
{
    static const struct {
        const char *model, *set[3], *refused;
    } runs[] = {
        {"llava-tiny",
         {"data.format=conversations", "data.image_size=512"},
         "data.image_size is given, but the model is a llava, expected a mask model"},
        {"llava-tiny", {"data.format=conversations", "data.flip=0.5"}, "data.flip is given, but the model is a llava"},
        {"llava-tiny", {"data.format=conversations", "data.threads=4", "data.max_images=2"}, NULL},
        {"llama-tiny",
         {"data.max_images=2"},
         "data.max_images is given, but the model is a llama, expected one that takes images"},
        {"Qwen/Qwen2-VL-2B", {"data.format=conversations", "data.max_patches=4096", "data.threads=4"}, NULL},
        {"Qwen/Qwen2-VL-2B",
         {"data.format=conversations", "data.max_images=2"},
         "data.max_images is given, but the model is a qwen2_vl, expected one that takes images of one size"},
        {"llava-tiny",
         {"data.format=conversations", "data.max_patches=64"},
         "data.max_patches is given, but the model is a llava, expected one whose images have any size"},
        {"llama-tiny", {"loss.focal=1"}, "loss.focal is given, but the model is a llama"},
        {"llama-tiny", {"data.threads=2"}, NULL}, /* the default */
        {"sam-tiny",
         {"data.format=coco", "data.sequence=512"},
         "data.sequence is given, but the model is a sam, expected a model that takes tokens"},
        {"sam-tiny", {"data.format=coco", "model.bn_group=2"}, "model.bn_group is given, but the model is a sam"},
        {"sam-tiny",
         {"data.format=coco", "data.min_iou=0.5"},
         "data.min_iou is given, but data.format is coco, expected sa1b or packed"},
        {"llama-tiny",
         {"train.beta1=0.8", "memory.optimizer=sgd"},
         "train.beta1 is given, but memory.optimizer is sgd, expected adamw"},
        {"llama-tiny",
         {"memory.encode=2"},
         "memory.encode is given, but the model is a llama, expected one that takes images of one size among its "
         "tokens (llava), one whose images have any size (qwen2_vl) or prs_med"},
        {"llava-tiny",
         {"data.format=conversations", "memory.mask_chunks=2"},
         "memory.mask_chunks is given, but the model is a llava, expected prs_med"},
        {"llava-tiny", {"data.format=conversations", "memory.encode=2"}, NULL},
        {"llama-tiny",
         {"adapter.r=4"},
         "adapter.r is given, but adapter.target_modules is not set, and adapter.path is not set"},
    };
    for (size_t i = 0; i < COUNT(runs); i++) {
        struct config c;
        struct error e = {0};
        config_init(&c);
        for (int j = 0; j < 3 && runs[i].set[j]; j++) accepts_set(&c, runs[i].set[j]);
        const int rc = check_both(&c, runs[i].model, &e);
        if (runs[i].refused) assert_has(rc ? e.text : "accepted", runs[i].refused);
        else if (rc) fail_msg("%s", e.text);
        config_free(&c);
    }
}

/* What --set leaves without effect in the run file is noted; what it leaves so itself is
 * refused. */
TEST(test_effects_of_options)
{
    static const char file[] = "data: {format: conversations, holdout: 0.5, max_frames: 8, fps: 2}\ntrain: "
                               "{eval_samples: 4, eval_max_new: 9}\n";
    static const struct {
        const char *model, *set[2], *refused;
    } runs[] = {
        {"llava-tiny", {"data.max_frames=0"}, NULL},
        {"llava-tiny", {"train.eval_samples=0"}, NULL},
        {"llava-tiny", {"data.max_frames=0", "data.fps=4"}, "data.fps is given, but data.max_frames is not set"},
        {"llama-tiny", {NULL}, "data.max_frames is given, but the model is a llama"},
        {"llama-tiny", {"model.preset=llama-tiny"}, NULL},
    };
    for (size_t i = 0; i < COUNT(runs); i++) {
        struct config c;
        struct error e = {0};
        config_init(&c);
        assert_int_equal(config_read_text(&c, file, "run.yaml", &e), PL_OK);
        for (int j = 0; j < 2 && runs[i].set[j]; j++) accepts_set(&c, runs[i].set[j]);
        const int rc = check_both(&c, runs[i].model, &e);
        if (runs[i].refused) assert_has(rc ? e.text : "accepted", runs[i].refused);
        else if (rc) fail_msg("%s", e.text);
        config_free(&c);
    }
}

/* Opens a preset in whose config.json `before` is `after`. */
static int open_changed(struct model *m, const char *preset, const char *before, const char *after, bool no_dropout,
                        struct error *e)
{
    struct text text = {0};
    struct model plain;
    assert_int_equal(model_preset(&plain, preset, e), PL_OK);
    const char *at = strstr(plain.config_text, before);
    assert_non_null(at);
    text_printf(&text, "%.*s%s%s", (int)(at - plain.config_text), plain.config_text, after, at + strlen(before));
    model_close(&plain);
    int rc = model_text(m, text.at, preset, e);
    text_free(&text);
    m->chosen.no_dropout = no_dropout;
    return rc;
}

/* A dropout of config.json that training would leave out is refused by name. */
TEST(test_dropout)
{
    static const struct {
        const char *preset, *before, *after, *said;
    } cases[] = {
        {"llama-tiny", "{", "{\"attention_dropout\": 0.1,",
         "attention_dropout is 0.1, and a llama has no dropout here; set model.dropout to 0"},
        {"qwen2-0.5b", "{", "{\"resid_pdrop\": 0.25,", "resid_pdrop is 0.25"},
        {"openai-community/gpt2", "  \"embd_pdrop\": 0.0,\n", "", "embd_pdrop is 0.1"}, /* as the class has it */
        {"mistral-7b", "{", "{\"hidden_dropout\": 0.5,", "hidden_dropout is 0.5"},
        {"clip-vit-b-16", "\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1", "attention_dropout is 0.1"},
        {"sam-tiny", "\"vision_config\": {", "\"vision_config\": {\"attention_dropout\": 0.1,",
         "vision_config.attention_dropout is 0.1"},
        {"tinysam-tiny", "{", "{\"drop_path_rate\": 0.1,", "drop_path_rate is 0.1"},
        {"llava-tiny", "\"text_config\": {", "\"text_config\": {\"attention_dropout\": 0.1,",
         "attention_dropout is 0.1"},
        {"llava-tiny", "\"vision_config\": {", "\"vision_config\": {\"attention_dropout\": 0.1,",
         "attention_dropout is 0.1"},
        {"prs-med-tiny", "{", "{\"attention_dropout\": 0.1,", NULL}, /* it has dropout */
        {"llama-tiny", "{", "{\"classifier_dropout\": null,", NULL},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct model m;
        struct error e = {0};
        if (open_changed(&m, cases[i].preset, cases[i].before, cases[i].after, false, &e)) fail_msg("%s", e.text);
        assert_int_equal(model_check_dropout(&m, &e), cases[i].said ? PL_USAGE : PL_OK);
        if (cases[i].said) assert_has(e.text, cases[i].said);
        model_close(&m);
        assert_int_equal(open_changed(&m, cases[i].preset, cases[i].before, cases[i].after, true, &e), PL_OK);
        assert_int_equal(model_check_dropout(&m, &e), PL_OK);
        model_close(&m);
    }
}

MAIN(NULL, NULL)
