# Plimsoll. `make` leaves build/plimsoll, build/libplimsoll.a and build/libplimsoll.so.0.
#
#   make test     install what is missing, build, run every test (PARTS='unit golden': some)
#   make test-cuda      on a machine with a GPU: every test of the CUDA device
#   make test-cuda-75   on any GPU: the ops with the code of compute capability 7.5
#   make demo     build, then a small training run: data, plan, train, kill, resume, predict, report
#   make asan     the tests under the address and undefined-behaviour sanitizers
#   make fuzz     the parsers under libFuzzer, FUZZ_SECONDS each (needs clang)
#   make bench    every op, and matrix products and convolutions of many sizes, as shares of the machine's peak
#   make docs     regenerate the generated pages of docs/
#   make quotes   renew the outputs of plimsoll plan that docs/guides quotes; takes minutes
#   make examples the programs in examples/, against the library
#   make install  PREFIX=/usr/local DESTDIR=: program, library, header, plimsoll.pc, docs
#   make deps     only install what is missing
#   make clean

ifeq ($(origin CC),default)
  CC := gcc
endif
BUILD   ?= build
CSTD    := -std=c11 -D_GNU_SOURCE
WARN    := -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-missing-field-initializers -Wno-format-zero-length -Wno-pass-failed
OPT     ?= -O3 -g -fno-math-errno -fno-trapping-math
CFLAGS  += $(CSTD) $(WARN) $(OPT) -fopenmp -fPIC -fvisibility=hidden -Isrc -Iinclude $(EXTRA)
DEP     := -MMD -MP
LDLIBS  += -lonig -lutf8proc -lcjson -lyaml -ljpeg -lpng -lz -lm -lpthread -ldl
LDFLAGS += -fopenmp $(EXTRA)

CUDA_ROOMS := cuda cuda/device cuda/attention cuda/products cuda/rows cuda/maps cuda/update
DIRS := base io text text/tokenizer text/template graph run cost dist cpu $(CUDA_ROOMS) passes passes/techniques passes/rewrites plan models data data/images data/masks data/volumes data/text data/formats config engine feed infer train calibrate report lib cli
# Sorted by make itself: the order of a wildcard depends on the locale.
SRCS := $(sort $(filter-out src/cli/main.c,$(foreach d,$(DIRS),$(wildcard src/$(d)/*.c))))

# CUDA: the device is a plug-in beside the program (src/cuda/cuda.h). It is built where nvcc is found, for the
# GPUs of this machine; without a GPU it is left out.
#
#   make CUDA_ARCH=sm_90     for these architectures (a list), whether or not this machine has such GPUs
#   make CUDA_ARCH=all       for a release: machine code for all architectures below, PTX for later ones; the
#                            build is several times slower
#   make CUDA=0              without CUDA
#
# Every build has the planning half of the CUDA device, plan*.c, the loader of the plug-in, and autotune_file.c, a
# file reader.
# With `all`, architectures with the same instructions share one PTX, which is compiled once. The files in
# CUDA_BF16 are bound by memory bandwidth in bf16 and have PTX of their own for compute capability 9.0 and
# later, which convert bf16 in one instruction.
CUDA_BF16     := act_sums.cu few_mma.cu elementwise.cu norm_packs.cu strided.cu sums.cu thin.cu
CUDA_OF_8      = sm_80,sm_86,sm_89
CUDA_FAT       = -gencode=arch=compute_75,code=sm_75 $(if $(filter $(CUDA_BF16),$(notdir $1)), \
                   -gencode=arch=compute_80$(comma)code=[$(CUDA_OF_8)] -gencode=arch=compute_90$(comma)code=[sm_90$(comma)sm_120$(comma)compute_90], \
                   -gencode=arch=compute_80$(comma)code=[$(CUDA_OF_8)$(comma)sm_90$(comma)sm_120$(comma)compute_80]) \
                   -Xfatbin=-compress-all --compress-mode=balance
# sm_7x gets no PTX: it has no bf16 tensor cores, and later GPUs would run that code without the host noticing.
CUDA_OWN       = $(foreach a,$(CUDA_ARCH),-gencode=arch=$(a:sm_%=compute_%),code=[$(a)$(if $(filter sm_7%,$(a)),,$(comma)$(a:sm_%=compute_%))])
# *hopper*.cu is for sm_90a alone: no other architecture, later ones included, has its instructions.
CUDA_HOPPER    = $(if $(findstring hopper,$(notdir $1)),-gencode=arch=compute_90a$(comma)code=sm_90a)
CUDA_CODE_OF   = $(or $(CUDA_HOPPER),$(if $(filter all,$(CUDA_ARCH)),$(CUDA_FAT),$(CUDA_OWN)))
comma         := ,
NVCC      ?= $(shell command -v nvcc)
# Architectures of this machine's GPUs that this nvcc can compile for, such as sm_90.
CUDA_HERE  = $(if $(NVCC),$(filter $(shell $(NVCC) --list-gpu-code 2>/dev/null),$(addprefix sm_,$(subst .,,$(sort \
               $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null))))))
ifeq ($(CUDA),1)
  CUDA_ARCH ?= $(or $(CUDA_HERE),all)
endif
CUDA_ARCH ?= $(CUDA_HERE)
CUDA_ARCH := $(CUDA_ARCH)
CUDA      ?= $(if $(and $(NVCC),$(CUDA_ARCH)),1,0)
# Set when nvcc is installed but neither a GPU nor CUDA_ARCH determines the architecture.
NO_PLUGIN := $(if $(filter 0,$(CUDA)),$(if $(NVCC),$(if $(filter file,$(origin CUDA)),1)))
# `make test` compiles the plug-in for one architecture where there is nvcc and no GPU.
CUDA_TEST  = $(if $(NVCC),$(if $(CUDA_ARCH),,CUDA_ARCH=sm_90))
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_CS   := $(filter-out src/cuda/products/autotune_file.c $(wildcard src/cuda/*.c src/cuda/*/plan_*.c),$(foreach d,$(CUDA_ROOMS),$(wildcard src/$(d)/*.c)))
SRCS      := $(filter-out $(CUDA_CS),$(SRCS))
ifeq ($(CUDA),1)
  ifneq ($(words $(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h $(CUDA_HOME)/include/cublasLt.h)),2)
    $(error nvcc is $(NVCC), but cuda_runtime_api.h or cublasLt.h is not in $(CUDA_HOME)/include: set CUDA_HOME, or build with make CUDA=0)
  endif
  CUDA_OBJS := $(CUDA_CS:src/%.c=$(BUILD)/%.o) $(patsubst src/%.cu,$(BUILD)/%.cu.o,$(foreach d,$(CUDA_ROOMS),$(wildcard src/$(d)/*.cu)))
  CUDA_LIBS := $(foreach d,$(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib),-L$(d) -Wl,-rpath,$(d)) -lcublasLt -lcudart -lstdc++
  NVFLAGS   := -O1 -std=c++17 $(if $(filter all,$(CUDA_ARCH)),,-lineinfo) -Isrc -Iinclude -MMD -MP -Werror all-warnings -Xcompiler -fPIC,-Wall,-Wextra
  PLUGIN    := $(BUILD)/plimsoll-cuda.so
endif

# oneDNN: on where a program that uses its version 2 links; `make ONEDNN=0` forces it off.
# Only src/cpu/onednn.c uses it; without oneDNN onednn_none.c replaces that file.
ONEDNN ?= $(shell printf '\043include <dnnl.h>\n\043if DNNL_VERSION_MAJOR != 2\n\043error\n\043endif\nint main(void) { return !dnnl_version(); }' | \
            $(CC) $(EXTRA) -x c - -ldnnl -o /dev/null 2>/dev/null && echo 1 || echo 0)
ifeq ($(ONEDNN),1)
  ONEDNN_LIBS := -ldnnl
  SRCS := $(filter-out src/cpu/onednn_none.c,$(SRCS))
else
  SRCS := $(filter-out src/cpu/onednn.c,$(SRCS))
endif
# PCRE2: regular expressions in adapter.target_modules, found in the same way; `make PCRE2=0` forces it off.
# Only src/base/regex.c uses it; without PCRE2 regex_none.c replaces that file.
PCRE2 ?= $(shell printf '\043define PCRE2_CODE_UNIT_WIDTH 8\n\043include <pcre2.h>\nint main(void) { return pcre2_config(PCRE2_CONFIG_VERSION, 0) < 0; }' | \
           $(CC) $(EXTRA) -x c - -lpcre2-8 -o /dev/null 2>/dev/null && echo 1 || echo 0)
ifeq ($(PCRE2),1)
  PCRE2_LIBS := -lpcre2-8
  SRCS := $(filter-out src/base/regex_none.c,$(SRCS))
else
  SRCS := $(filter-out src/base/regex.c,$(SRCS))
endif
# libwebp: WebP images, found in the same way; `make WEBP=0` forces it off.
# Only src/data/images/webp.c uses it; without libwebp webp_none.c replaces that file.
WEBP ?= $(shell printf '\043include <webp/decode.h>\nint main(void) { return !WebPGetDecoderVersion(); }' | \
          $(CC) $(EXTRA) -x c - -lwebp -o /dev/null 2>/dev/null && echo 1 || echo 0)
ifeq ($(WEBP),1)
  WEBP_LIBS := -lwebp
  SRCS := $(filter-out src/data/images/webp_none.c,$(SRCS))
else
  SRCS := $(filter-out src/data/images/webp.c,$(SRCS))
endif
# libtiff: TIFF images, found in the same way; `make TIFF=0` forces it off.
# Only src/data/images/tiff.c uses it; without libtiff tiff_none.c replaces that file.
TIFF ?= $(shell printf '\043include <tiffio.h>\nint main(void) { return !TIFFGetVersion(); }' | \
          $(CC) $(EXTRA) -x c - -ltiff -o /dev/null 2>/dev/null && echo 1 || echo 0)
ifeq ($(TIFF),1)
  TIFF_LIBS := -ltiff
  SRCS := $(filter-out src/data/images/tiff_none.c,$(SRCS))
else
  SRCS := $(filter-out src/data/images/tiff.c,$(SRCS))
endif
# OpenJPEG: DICOM images in JPEG 2000, found in the same way; `make OPENJPEG=0` forces it off.
# Only src/data/volumes/dicom_j2k.c uses it; without OpenJPEG dicom_j2k_none.c replaces that file.
OPENJPEG_FLAGS := $(if $(filter 0,$(OPENJPEG)),,$(shell pkg-config --cflags libopenjp2 2>/dev/null))
OPENJPEG ?= $(shell printf '\043include <openjpeg.h>\nint main(void) { return !opj_version(); }' | \
              $(CC) $(EXTRA) $(OPENJPEG_FLAGS) -x c - -lopenjp2 -o /dev/null 2>/dev/null && echo 1 || echo 0)
ifeq ($(OPENJPEG),1)
  OPENJPEG_LIBS := -lopenjp2
  SRCS := $(filter-out src/data/volumes/dicom_j2k_none.c,$(SRCS))
else
  SRCS := $(filter-out src/data/volumes/dicom_j2k.c,$(SRCS))
endif
# libzstd: Parquet tables that are compressed with zstd, found in the same way; `make ZSTD=0` forces it off.
# Only src/io/zstd.c uses it; without libzstd zstd_none.c replaces that file.
ZSTD ?= $(shell printf '\043include <zstd.h>\nint main(void) { return !ZSTD_versionNumber(); }' | \
          $(CC) $(EXTRA) -x c - -lzstd -o /dev/null 2>/dev/null && echo 1 || echo 0)
ifeq ($(ZSTD),1)
  ZSTD_LIBS := -lzstd
  SRCS := $(filter-out src/io/zstd_none.c,$(SRCS))
else
  SRCS := $(filter-out src/io/zstd.c,$(SRCS))
endif
# FFmpeg 4.4 or later: video files; on where its headers are found; `make FFMPEG=0` forces it off. Only
# src/data/images/video_file.c uses it, which loads the libraries at run time; without FFmpeg video_file_none.c replaces that file.
FFMPEG_FLAGS := $(if $(filter 0,$(FFMPEG)),,$(shell pkg-config --cflags libavformat 2>/dev/null))
FFMPEG ?= $(shell printf '\043include <libavformat/avformat.h>\n\043include <libswscale/swscale.h>\n\043if LIBAVFORMAT_VERSION_MAJOR < 58\n\043error\n\043endif' | \
            $(CC) $(EXTRA) $(FFMPEG_FLAGS) -x c -fsyntax-only - 2>/dev/null && echo 1 || echo 0)
ifeq ($(FFMPEG),1)
  SRCS := $(filter-out src/data/images/video_file_none.c,$(SRCS))
else
  SRCS := $(filter-out src/data/images/video_file.c,$(SRCS))
endif
# MPI: ranks are connected by a plug-in beside the program (src/dist/dist.h), which is built where mpicc works; `make MPI=0`
# forces it off. Only src/dist/mpi.c uses it.
MPICC ?= mpicc
MPI   ?= $(shell printf '\043include <mpi.h>\nint main(void) { return MPI_Finalize(); }' | $(MPICC) -x c - -o /dev/null 2>/dev/null && echo 1 || echo 0)
SRCS  := $(filter-out src/dist/mpi.c,$(SRCS))
ifeq ($(MPI),1)
  MPI_PLUGIN := $(BUILD)/plimsoll-mpi.so
endif
LDLIBS += $(ONEDNN_LIBS) $(PCRE2_LIBS) $(WEBP_LIBS) $(TIFF_LIBS) $(OPENJPEG_LIBS) $(ZSTD_LIBS)
OBJS := $(SRCS:src/%.c=$(BUILD)/%.o)
LIB  := $(BUILD)/libparts.a

# The libraries for users: both export only the functions that include/plimsoll.h declares. The static library
# is a single object whose hidden symbols are local, so that no internal name clashes with a user's.
VERSION := $(shell sed -n 's/^.define PL_VERSION "\(.*\)"/\1/p' include/plimsoll.h)
STATIC  := $(BUILD)/libplimsoll.a
SHARED  := $(BUILD)/libplimsoll.so.0
OBJCOPY ?= objcopy
PUBLIC  := $(filter-out $(BUILD)/cli/%,$(OBJS))

all: $(BUILD)/plimsoll $(STATIC) $(SHARED) $(PLUGIN) $(MPI_PLUGIN)
	@$(if $(NO_PLUGIN),echo 'no GPU here: built without the CUDA plug-in (make CUDA_ARCH=all builds it for every GPU)' >&2,:)

$(BUILD)/plimsoll: $(BUILD)/cli/main.o $(LIB)
	$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@
$(SHARED): $(PUBLIC) $(BUILD)/objects
	$(CC) $(LDFLAGS) -shared -Wl,-soname,$(@F) $(if $(EXTRA),,-Wl,-z,defs) $(PUBLIC) $(LDLIBS) -o $@
	@ln -sf $(@F) $(BUILD)/libplimsoll.so
$(STATIC): $(PUBLIC) $(BUILD)/objects
	$(CC) -r -nostdlib $(PUBLIC) -o $(BUILD)/plimsoll-public.o
	$(OBJCOPY) --localize-hidden $(BUILD)/plimsoll-public.o
	@rm -f $@ && $(AR) rcs $@ $(BUILD)/plimsoll-public.o
# The plug-in contains the few internal functions that it calls: the program and both libraries, which load
# it, export none of them.
$(BUILD)/plimsoll-cuda.so: $(CUDA_OBJS) $(BUILD)/libseam.a
	$(CC) $(LDFLAGS) -shared -Wl,-z,defs $(CUDA_OBJS) $(BUILD)/libseam.a $(CUDA_LIBS) $(ONEDNN_LIBS) $(PCRE2_LIBS) -lm -lpthread -ldl -o $@
$(BUILD)/plimsoll-mpi.so: src/dist/mpi.c src/dist/dist.h src/run/ranks.h
	@mkdir -p $(@D)
	$(MPICC) $(CSTD) $(WARN) -O2 -g -fPIC -fvisibility=hidden -Isrc -Iinclude $(EXTRA) -shared $< -o $@
$(LIB): $(OBJS) $(BUILD)/objects
	@rm -f $@ && $(AR) rcs $@ $(OBJS)
# This file changes with the list of objects, so that a removed source or another CUDA setting relinks the libraries.
$(BUILD)/objects: always
	@mkdir -p $(@D) && echo '$(OBJS)' | cmp -s - $@ || echo '$(OBJS)' >$@
$(BUILD)/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(DEP) -c $< -o $@
# Measured profiles of GPUs as C string literals.
$(BUILD)/profiles/%.inc: src/cost/profiles/%.json
	@mkdir -p $(@D)
	sed 's/["\\]/\\&/g; s/^/"/; s/$$/\\n"/' $< >$@
$(BUILD)/cost/profile_stored.o: CFLAGS += -I$(BUILD)
$(BUILD)/cost/profile_stored.o: $(patsubst src/cost/%.json,$(BUILD)/%.inc,$(wildcard src/cost/profiles/*.json))
# The dependency chain of exp_fast leaves the processor idle; unrolled iterations fill the gaps.
UNROLL := activations attention elementwise softmax tokens
$(UNROLL:%=$(BUILD)/cpu/%.o): CFLAGS += -funroll-loops
# A plan is the same on every machine: no fused multiply-add, which only some machines have.
EXACT := $(filter $(foreach d,graph run passes plan,$(BUILD)/$(d)%) $(foreach d,$(CUDA_ROOMS),$(BUILD)/$(d)/plan%),$(OBJS))
$(EXACT): CFLAGS += -ffp-contract=off
# 4-bit weights have the bits of bitsandbytes, and resized images the bytes of Pillow.
$(BUILD)/base/nf4.o $(BUILD)/data/images/resize_table.o: CFLAGS += -ffp-contract=off
$(BUILD)/data/images/video_file.o: CFLAGS += $(FFMPEG_FLAGS)
$(BUILD)/data/volumes/dicom_j2k.o: CFLAGS += $(OPENJPEG_FLAGS)
$(BUILD)/fuzz/src/data/volumes/dicom_j2k.o: FUZZ_FLAGS += $(OPENJPEG_FLAGS)
$(BUILD)/fuzz/src/data/images/video_file.o: FUZZ_FLAGS += $(FFMPEG_FLAGS)
$(CUDA_OBJS): CFLAGS += -isystem $(CUDA_HOME)/include
$(BUILD)/%.cu.o: src/%.cu $(BUILD)/cuda-code
	@mkdir -p $(@D)
	$(NVCC) $(call CUDA_CODE_OF,$<) $(NVFLAGS) -c $< -o $@
# This file changes with CUDA_ARCH, so that the objects are compiled again for other architectures.
$(BUILD)/cuda-code: always
	@mkdir -p $(@D) && echo '$(call CUDA_CODE_OF,) $(NVFLAGS)' | cmp -s - $@ || echo '$(call CUDA_CODE_OF,) $(NVFLAGS)' >$@

TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
$(BUILD)/tests/%: tests/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(DEP) -MF $@.d -MT $@ -Itests $< $(LIB) $(LDFLAGS) $(LDLIBS) $(if $(filter test_%,$*),-lcmocka) -o $@

# clang finds its own OpenMP library by this flag alone.
OPENMP_LIB = $(if $(shell $(CC) --version 2>/dev/null | grep -i clang),-fopenmp,-lgomp)
# Programs outside the project use the public header and the flags of pkg-config, which reads
# plimsoll-uninstalled.pc for the build tree. $(call pc,prefix,includedir,libdir) prints it. Its rpath lets
# programs find the library without LD_LIBRARY_PATH; in /usr/lib the loader finds it anyway.
pc = sed 's|@PREFIX@|$1|; s|@INCLUDEDIR@|$2|; s|@LIBDIR@|$3|; s|@VERSION@|$(VERSION)|; s|@OPENMP@|$(OPENMP_LIB)|; s|@ONEDNN@|$(ONEDNN_LIBS)|; s|@PCRE2@|$(PCRE2_LIBS)|; s|@WEBP@|$(WEBP_LIBS) $(TIFF_LIBS) $(OPENJPEG_LIBS)|; s|@ZSTD@|$(ZSTD_LIBS)|; s| @RPATH@|$(if $(filter /usr,$1),, -Wl,-rpath,$${libdir})|' tools/plimsoll.pc.in
PC := $(BUILD)/plimsoll-uninstalled.pc
$(PC): tools/plimsoll.pc.in include/plimsoll.h
	@mkdir -p $(@D)
	@$(call pc,$(CURDIR),$(CURDIR)/include,$(abspath $(BUILD))) >$@
OUTSIDE = $(CSTD) $(WARN) -O2 -g $(EXTRA) $< $$(PKG_CONFIG_PATH=$(BUILD) pkg-config --cflags --libs plimsoll)
EXAMPLES := $(patsubst examples/%.c,$(BUILD)/examples/%,$(wildcard examples/*.c))
$(EXAMPLES): $(BUILD)/examples/%: examples/%.c include/plimsoll.h $(SHARED) $(PC)
	@mkdir -p $(@D)
	$(CC) $(OUTSIDE) -lm -o $@
$(filter $(BUILD)/tests/test_library% $(BUILD)/tests/test_loops,$(TESTS)): $(BUILD)/tests/%: tests/%.c tests/library.h include/plimsoll.h $(SHARED) $(PC)
	@mkdir -p $(@D)
	$(CC) $(OUTSIDE) -lcmocka -lm -o $@

# A fuzz target with a main that runs it on the stored corpus; needs no libFuzzer.
REPLAYS := $(patsubst tests/fuzz/fuzz_%.c,$(BUILD)/tests/replay_%,$(wildcard tests/fuzz/fuzz_*.c))
$(REPLAYS): $(BUILD)/tests/replay_%: tests/fuzz/fuzz_%.c tests/fuzz/replay_main.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $^ $(LDFLAGS) $(LDLIBS) -o $@
HELPERS := $(addprefix $(BUILD)/tests/,compare json_get render forge forge_pth forge_png forge_conversations forge_shapes forge_questions forge_videos pixels video cuda_seam cuda_ops profile_path)
tests: $(TESTS) $(REPLAYS) $(HELPERS) $(EXAMPLES)

# The tests of the CUDA device against the reference kernels need none of the libraries for files and
# configurations, so that they build on a bare machine with a GPU.
SEAM := $(filter $(foreach d,base graph run cost cpu cuda passes plan,$(BUILD)/$(d)/%) $(BUILD)/io/file.o,$(OBJS))
$(BUILD)/libseam.a: $(SEAM)
	rm -f $@ && $(AR) rcs $@ $(SEAM)
$(BUILD)/bench/bench_cuda_attention $(BUILD)/bench/bench_cuda_update: $(BUILD)/bench/%: bench/%.c $(BUILD)/libseam.a $(PLUGIN)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(DEP) -MF $@.d -MT $@ $< $(BUILD)/libseam.a $(LDFLAGS) $(ONEDNN_LIBS) $(PCRE2_LIBS) -lm -lpthread -ldl -o $@
$(BUILD)/tests/cuda_seam $(BUILD)/tests/cuda_ops: $(BUILD)/tests/%: tests/%.c $(BUILD)/libseam.a $(PLUGIN)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(DEP) -MF $@.d -MT $@ -Itests $< $(BUILD)/libseam.a $(LDFLAGS) $(ONEDNN_LIBS) $(PCRE2_LIBS) -lm -lpthread -ldl -o $@

# --- targets for users --------------------------------------------------------

# A build with progress (n of m), after `deps`: as parallel as this make, else on all cores.
BUILD_WITH_PROGRESS = tools/build.sh $(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc))

deps:
	@CC="$(CC)" tools/deps.sh
test: deps
	+@$(BUILD_WITH_PROGRESS) $(CUDA_TEST) all tests
	+@$(MAKE) --no-print-directory $(CUDA_TEST) check
check: all tests
	+@BUILD=$(BUILD) tools/test.sh $(PARTS)
test-cuda:
	+@$(BUILD_WITH_PROGRESS) $(BUILD)/plimsoll $(PLUGIN) $(MPI_PLUGIN) $(HELPERS)
	@BUILD=$(BUILD) tests/cuda.sh $(PARTS)
# Ranks under a Slurm of their own on this machine: needs root, slurm-wlm and munge.
test-slurm: all $(BUILD)/tests/json_get
	@BUILD=$(BUILD) bash tests/slurm_ranks.sh
# The code of compute capability 7.5 (sm_75) on any GPU: its PTX compiled for that GPU, in f32 and f16.
test-cuda-75: GPU = $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d .)
test-cuda-75:
	+@$(BUILD_WITH_PROGRESS) BUILD=$(BUILD)/75 CUDA_ARCH=sm_75 CUDA_OWN=-gencode=arch=compute_75,code=$(or $(GPU:%=sm_%),compute_75) $(BUILD)/75/plimsoll-cuda.so $(BUILD)/75/tests/cuda_ops
	@$(BUILD)/75/tests/cuda_ops --like 75 $(OPS)
demo: deps
	+@$(BUILD_WITH_PROGRESS) all
	@BUILD=$(BUILD) tools/demo.sh
docs: all
	@BUILD=$(BUILD) tools/docs.sh
quotes: all
	@BUILD=$(BUILD) tools/docs.sh --quotes
examples: $(EXAMPLES)

# tools/installed.sh prints what a shell needs to use the installation. A plug-in of an earlier installation
# would not match this program.
PREFIX  ?= /usr/local
DESTDIR ?=
prefix  := $(abspath $(patsubst ~/%,$(HOME)/%,$(PREFIX)))
to      := $(DESTDIR)$(prefix)
install: all
	install -d $(to)/bin $(to)/include $(to)/lib/pkgconfig $(to)/share/doc/plimsoll/examples
	install -m 755 $(BUILD)/plimsoll $(to)/bin/
	install -m 644 include/plimsoll.h $(to)/include/
	install -m 644 $(STATIC) $(to)/lib/
	rm -f $(to)/lib/plimsoll-cuda.so $(to)/lib/plimsoll-mpi.so
	install -m 755 $(SHARED) $(PLUGIN) $(MPI_PLUGIN) $(to)/lib/
	ln -sf $(notdir $(SHARED)) $(to)/lib/libplimsoll.so
	$(call pc,$(prefix),$(prefix)/include,$(prefix)/lib) >$(to)/lib/pkgconfig/plimsoll.pc
	install -m 644 LICENSE README.md $(to)/share/doc/plimsoll/
	cp -R docs $(to)/share/doc/plimsoll/
	install -m 644 examples/* $(to)/share/doc/plimsoll/examples/
	@tools/installed.sh "$(prefix)" "$(DESTDIR)"

# The instrumentation hides value ranges from the compiler, which then gives false warnings.
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer \
            -Wno-format-truncation -Wno-maybe-uninitialized
asan: deps
	+@$(BUILD_WITH_PROGRESS) BUILD=$(BUILD)/asan CUDA=0 OPT='-O1 -g' EXTRA='$(SANITIZE)' all tests
	@BUILD=$(BUILD)/asan tools/test.sh unit replay golden

FUZZ_SECONDS ?= 60
FUZZ_FLAGS   := $(CSTD) -g -O1 -DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION -fno-sanitize-recover=undefined -Isrc -Iinclude
# Every reader of files, without the kernels: a target links with what it calls.
FUZZ_OBJS    := $(patsubst src/%.c,$(BUILD)/fuzz/src/%.o,$(filter-out src/cpu/% src/cuda/% src/cli/% src/lib/% src/calibrate/% src/infer/%,$(SRCS)) src/cuda/products/autotune_file.c src/cli/predict_prompts.c)
$(BUILD)/fuzz/src/%.o: src/%.c
	@mkdir -p $(@D)
	clang $(FUZZ_FLAGS) $(DEP) -fsanitize=fuzzer-no-link,address,undefined -c $< -o $@
$(BUILD)/fuzz/src/cost/profile_stored.o: FUZZ_FLAGS += -I$(BUILD)
$(BUILD)/fuzz/src/cost/profile_stored.o: $(patsubst src/cost/%.json,$(BUILD)/%.inc,$(wildcard src/cost/profiles/*.json))
$(BUILD)/fuzz/libparts.a: $(FUZZ_OBJS)
	@rm -f $@ && $(AR) rcs $@ $(FUZZ_OBJS)
FUZZERS      := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
$(FUZZERS): $(BUILD)/fuzz/%: tests/fuzz/%.c tests/fuzz/machine.c $(BUILD)/fuzz/libparts.a
	clang $(FUZZ_FLAGS) -fsanitize=fuzzer,address,undefined $^ -lonig -lutf8proc -lcjson -lyaml -ljpeg -lpng -lz -lm -lpthread -ldl $(PCRE2_LIBS) $(WEBP_LIBS) $(TIFF_LIBS) $(OPENJPEG_LIBS) $(ZSTD_LIBS) -o $@
fuzz: deps
	@CC="$(CC)" tools/deps.sh fuzz
	+@$(BUILD_WITH_PROGRESS) $(FUZZERS)
	@BUILD=$(BUILD) SECONDS_EACH=$(FUZZ_SECONDS) tools/fuzz.sh

BENCHES := $(patsubst bench/%.c,$(BUILD)/bench/%,$(filter-out bench/bench_cuda_%,$(wildcard bench/bench_*.c)))
$(BUILD)/bench/%: bench/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(DEP) -MF $@.d -MT $@ -Itests $< $(LIB) $(LDFLAGS) $(LDLIBS) -lcmocka -o $@
$(BUILD)/bench/mpi_ranks: bench/mpi_ranks.c $(LIB)
	@mkdir -p $(@D)
	$(MPICC) $(CFLAGS) $(DEP) -MF $@.d -MT $@ $< $(LIB) $(LDFLAGS) $(LDLIBS) -o $@
bench: deps
	+@$(BUILD_WITH_PROGRESS) $(BENCHES)
	@for b in $(filter-out %/bench_loader %/bench_tokenize,$(BENCHES)); do $$b || exit 1; done # those two need files: bench/data.sh, bench/peer_tokenize.py

clean:
	rm -rf $(BUILD)
.PHONY: all tests examples install deps test test-cuda test-cuda-75 test-slurm check demo docs quotes asan fuzz bench clean always

-include $(FUZZ_OBJS:.o=.d) $(OBJS:.o=.d) $(CUDA_OBJS:.o=.d) $(BUILD)/cli/main.d $(TESTS:=.d) $(HELPERS:=.d) $(BENCHES:=.d) $(patsubst bench/%.c,$(BUILD)/bench/%.d,$(wildcard bench/bench_cuda_*.c))
