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
#   make wheel    the Python wheel, build/wheel/*.whl (docs/guides/python.md)
#   make page     the page "Does it fit on my GPU?", build/page/index.html (needs emscripten)
#   make site     the documentation and that page as a site, build/site/index.html (needs cmark-gfm)
#   make dist     a release in dist/: archives, wheel, .deb, SBOM, SHA256SUMS; the same bytes each time
#   make examples the programs in examples/, against the library
#   make install  PREFIX=/usr/local DESTDIR=: program, library, header, plimsoll.pc, docs
#   make deps     only install what is missing
#   make clean
#
#   CUDA=0, ONEDNN=0, MPI=0, FFMPEG=0 ...   without that library
#   LINEINFO=1     CUDA kernels with the lines of their source, for profilers
#   CUDA_QUICK=1   CUDA kernels that are compiled quickly and refuse to run, as `make test` has them
#                  on a machine without a GPU

BUILD ?= build
# No built-in rules: make would try them for every header.
MAKEFLAGS += -r
.SUFFIXES:
.DEFAULT_GOAL := all

# The build folder remembers the switches of its last make in given.mk and which libraries are found
# in found.mk: a later make in it needs no switches and asks no compiler. What a changed switch
# concerns is built again. `make clean` forgets.
LIBRARIES := ONEDNN WEBP TIFF OPENJPEG ZSTD FFMPEG MPI
SWITCHES  := CC OPT HARDEN EXTRA CFLAGS LDFLAGS LDLIBS NVCC CUDA CUDA_ARCH CUDA_HOME MPICC $(LIBRARIES)
ifeq ($(origin CC),default)
  undefine CC
endif
-include $(BUILD)/given.mk
# A GPU that is found here counts as given, so that it is asked for once.
NVCC ?= $(firstword $(wildcard $(addsuffix /nvcc,$(subst :, ,$(PATH)))))
# Architectures of this machine's GPUs that this nvcc can compile for, such as sm_90.
CUDA_CAPS  = $(subst .,,$(sort $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null)))
CUDA_HERE  = $(if $(NVCC),$(foreach a,$(CUDA_CAPS:%=sm_%),$(filter $a,$(shell $(NVCC) --list-gpu-code 2>/dev/null))))
CUDA_ARCH ?= $(if $(filter 0,$(CUDA)),,$(or $(CUDA_HERE),$(if $(filter 1,$(CUDA)),all)))
CUDA_ARCH := $(CUDA_ARCH)
GIVEN     := $(foreach s,$(SWITCHES),$(if $(filter-out undefined default,$(origin $s)),$(if $(or $($s),$(filter-out NVCC CUDA_ARCH,$s)),$s)))
$(foreach s,CUDA $(LIBRARIES),$(if $(filter-out 0 1,$($s)),$(error $s is "$($s)": expected 0 or 1)))
# $(call keep,FILE,TEXT) writes $(BUILD)/FILE if it does not hold TEXT: what depends on the file is
# rebuilt.
keep = $(if $(call differ,$(strip $(file <$(BUILD)/$1)),$(strip $2)),$(shell mkdir -p $(BUILD))$(file >$(BUILD)/$1,$2))
differ = $(subst <$1>,,<$2>)
define line
$1 ?= $(subst $$,$$$$,$(strip $($1)))

endef
$(call keep,given.mk,$(foreach s,$(GIVEN),$(call line,$s)))
-include $(if $(filter-out clean,$(or $(MAKECMDGOALS),all)),$(BUILD)/found.mk)
CC    ?= gcc
MPICC ?= mpicc
# Written above.
$(BUILD)/given.mk: ;
# Headers that were installed or removed since are looked for again.
$(BUILD)/found.mk: tools/probe.sh $(BUILD)/given.mk $(wildcard /usr/include /usr/include/*-linux-gnu /usr/local/include)
	@CC='$(CC)' MPICC='$(MPICC)' EXTRA='$(EXTRA)' tools/probe.sh >$@.part && mv $@.part $@

CSTD   := -std=c11 -D_GNU_SOURCE
WARN   := -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-missing-field-initializers -Wno-format-zero-length -Wno-pass-failed
OPT    ?= -O3 -g -fno-math-errno -fno-trapping-math
# Checks of the stack and of the C library's copies, for a program that reads files of strangers;
# `make HARDEN=`: without.
HARDEN ?= $(if $(filter -O0,$(OPT)),,-fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
FLAGS  := $(CSTD) $(WARN) $(OPT) $(HARDEN) -fopenmp -fPIC -fvisibility=hidden -Isrc -Iinclude -I$(BUILD) $(EXTRA) $(CFLAGS)
DEP    := -MMD -MP
RELRO  := -Wl,-z,relro,-z,now
LINK   := -fopenmp $(RELRO) $(EXTRA) $(LDFLAGS)

# Sorted by make itself: the order of a wildcard depends on the locale.
SRCS := $(sort $(filter-out src/cli/main.c src/dist/mpi.c src/page/%,$(wildcard src/*/*.c src/*/*/*.c)))
CUDA_ROOMS := cuda $(patsubst src/%/,%,$(sort $(wildcard src/cuda/*/)))

# CUDA: the device is a plug-in beside the program (src/cuda/cuda.h). It is built where nvcc is
# found, for the GPUs of this machine; without a GPU it is left out.
#
#   make CUDA_ARCH=sm_90     for these architectures (a list), whether or not this machine has such GPUs
#   make CUDA_ARCH=all       for a release: machine code for all architectures below, PTX for later ones; the
#                            build is several times slower
#   make CUDA=0              without CUDA
#
# Every build has the planning half of the CUDA device, plan*.c, the loader of the plug-in, and
# autotune_file.c, a file reader. With `all`, architectures with the same instructions share one
# PTX, which is compiled once. The files in CUDA_BF16 are bound by memory bandwidth in bf16 and have
# PTX of their own for compute capability 9.0 and later, which convert bf16 in one instruction.
CUDA_BF16     := act_sums.cu few_queries_or_keys_mma.cu elementwise.cu norm_packs.cu norm_rope.cu softcap.cu strided.cu sums.cu thin.cu
CUDA_OF_8      = sm_80,sm_86,sm_89
CUDA_FAT       = -gencode=arch=compute_75,code=sm_75 $(if $(filter $(CUDA_BF16),$(notdir $1)), \
                   -gencode=arch=compute_80$(comma)code=[$(CUDA_OF_8)] -gencode=arch=compute_90$(comma)code=[sm_90$(comma)sm_120$(comma)compute_90], \
                   -gencode=arch=compute_80$(comma)code=[$(CUDA_OF_8)$(comma)sm_90$(comma)sm_120$(comma)compute_80]) \
                   -Xfatbin=-compress-all --compress-mode=balance
# sm_7x gets no PTX: it has no bf16 tensor cores, and later GPUs would run that code without the
# host noticing.
CUDA_OWN       = $(foreach a,$(CUDA_ARCH),-gencode=arch=$(a:sm_%=compute_%),code=[$(a)$(if $(filter sm_7%,$(a)),,$(comma)$(a:sm_%=compute_%))])
# *hopper*.cu is for sm_90a only: no other architecture, later ones included, has its instructions.
CUDA_HOPPER    = $(if $(findstring hopper,$(notdir $1)),-gencode=arch=compute_90a$(comma)code=sm_90a)
CUDA_CODE_OF   = $(or $(CUDA_HOPPER),$(CUDA_FAST) $(if $(filter all,$(CUDA_ARCH)),$(CUDA_FAT),$(CUDA_OWN)))
comma         := ,
space         := $(subst ,, )
CUDA      ?= $(if $(and $(NVCC),$(CUDA_ARCH)),1,0)
# Set when nvcc is installed but neither a GPU nor CUDA_ARCH determines the architecture.
NO_PLUGIN := $(if $(NVCC),$(if $(filter CUDA,$(GIVEN)),,$(if $(CUDA_ARCH),,1)))
# `make test` compiles the plug-in for one architecture where there is nvcc and no GPU. Newer
# compilers then optimize little, which takes half of the time, but where registers are assigned by
# hand; such a plug-in says so on a GPU.
CUDA_TEST := $(if $(NO_PLUGIN),CUDA_ARCH=sm_90 CUDA_QUICK=1)
CUDA_FAST := $(if $(CUDA_QUICK),$(if $(shell $(NVCC) --help | grep -e --Ofast-compile),-Ofc=max))
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_CS   := $(filter-out src/cuda/products/autotune_file.c $(wildcard src/cuda/*.c src/cuda/*/plan_*.c),$(foreach d,$(CUDA_ROOMS),$(wildcard src/$(d)/*.c)))
SRCS      := $(filter-out $(CUDA_CS),$(SRCS))
ifeq ($(CUDA),1)
  ifneq ($(words $(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h $(CUDA_HOME)/include/cublasLt.h)),2)
    $(error nvcc is $(NVCC), but cuda_runtime_api.h or cublasLt.h is not in $(CUDA_HOME)/include: set CUDA_HOME, or build with make CUDA=0)
  endif
  CUDA_OBJS := $(CUDA_CS:src/%.c=$(BUILD)/%.o) $(patsubst src/%.cu,$(BUILD)/%.cu.o,$(foreach d,$(CUDA_ROOMS),$(wildcard src/$(d)/*.cu)))
  CUDA_DIRS := $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib)
  CUDA_LIBS := $(CUDA_DIRS:%=-L%) -lcublasLt -lcudart -lstdc++
  NVFLAGS   := -O1 -std=c++17 $(if $(LINEINFO),-lineinfo) $(if $(CUDA_FAST),-DCUDA_QUICK) -Isrc -Iinclude -I$(BUILD) -MMD -MP -Werror all-warnings -Xcompiler $(subst $(space),$(comma),-fPIC -Wall -Wextra $(HARDEN))
  PLUGIN    := $(BUILD)/plimsoll-cuda.so
endif

# $(call optional,NAME,library,source): a library that is used where tools/probe.sh finds it; `make
# NAME=0` forces it off. Only src/SOURCE.c uses it; without the library SOURCE_none.c replaces that
# file.
define optional
$1_LIBS := $(if $(filter 1,$($1)),$2)
SRCS    := $(filter-out src/$3$(if $(filter 1,$($1)),_none).c,$(SRCS))
$(BUILD)/$3.o $(BUILD)/fuzz/src/$3.o: OWN += $($1_FLAGS)
endef
$(eval $(call optional,ONEDNN,-ldnnl,cpu/products/onednn))
$(eval $(call optional,WEBP,-lwebp,data/images/webp))
$(eval $(call optional,TIFF,-ltiff,data/images/tiff))
$(eval $(call optional,OPENJPEG,-lopenjp2,data/volumes/dicom_j2k))
$(eval $(call optional,ZSTD,-lzstd,io/zstd))
# video_file.c loads FFmpeg's libraries at run time.
$(eval $(call optional,FFMPEG,,data/images/video_file))
# MPI: ranks are connected by a plug-in beside the program (src/dist/dist.h), which is built where
# mpicc works; `make MPI=0` forces it off. Only src/dist/mpi.c uses it.
ifeq ($(MPI),1)
  MPI_PLUGIN := $(BUILD)/plimsoll-mpi.so
endif
# The libraries that every build needs, and those of the readers of files.
NEEDED := -lonig -lutf8proc -lcjson -lyaml -ljpeg -lpng -lz
READERS = $(NEEDED) $(WEBP_LIBS) $(TIFF_LIBS) $(OPENJPEG_LIBS) $(ZSTD_LIBS)
SYSTEM := -lm -lpthread -ldl
LIBS   := $(READERS) $(ONEDNN_LIBS) $(SYSTEM) $(LDLIBS)
OBJS   := $(SRCS:src/%.c=$(BUILD)/%.o)
$(call keep,flags,$(CC) $(MPICC) $(FLAGS))
# The attributes of ops, which graph.h includes: rows without new ones leave the file as it is.
$(call keep,attrs.h,$(shell sed -nE 's/^ATTRS\(([a-z_0-9]+), (.*)\)$$/struct attr_\1 { \2; } \1;/p' src/graph/ops.def))
$(call keep,objects,$(OBJS) $(LINK) $(LIBS))
$(call keep,cuda-code,$(NVCC) $(CUDA_CODE_OF) $(NVFLAGS))
LIB  := $(BUILD)/libparts.a

# The libraries for users: both export only the functions that include/plimsoll.h declares. The
# static library is a single object whose hidden symbols are local, so that no internal name clashes
# with a user's.
VERSION := $(shell sed -n 's/^.define PL_VERSION "\(.*\)"/\1/p' include/plimsoll.h)
STATIC  := $(BUILD)/libplimsoll.a
SHARED  := $(BUILD)/libplimsoll.so.0
OBJCOPY ?= objcopy
PUBLIC  := $(filter-out $(BUILD)/cli/%,$(OBJS))

all: $(BUILD)/plimsoll $(STATIC) $(SHARED) $(PLUGIN) $(MPI_PLUGIN)
	@rm -f $(filter-out $(PLUGIN) $(MPI_PLUGIN),$(BUILD)/plimsoll-cuda.so $(BUILD)/plimsoll-mpi.so) # of other switches
	@$(if $(NO_PLUGIN),echo 'no GPU here: built without the CUDA plug-in (make CUDA_ARCH=all builds it for every GPU)' >&2,:)

$(BUILD)/plimsoll: $(BUILD)/cli/main.o $(LIB)
	$(CC) -pie $(LINK) $^ $(LIBS) -o $@
$(SHARED): $(PUBLIC) $(BUILD)/objects
	$(CC) $(LINK) -shared -Wl,-soname,$(@F) $(if $(EXTRA),,-Wl,-z,defs) $(PUBLIC) $(LIBS) -o $@
	@ln -sf $(@F) $(BUILD)/libplimsoll.so
# The same two for the Python wheel and for archives: what they link with is beside them, and their
# libraries' own libraries too, which only an rpath of the old kind finds.
RELEASED := $(addprefix $(BUILD)/wheel/,plimsoll libplimsoll.so.0 libLerc.so.4 libjbig.so.0 $(notdir $(PLUGIN)))
BESIDE = -Wl,--disable-new-dtags,-rpath,'$$ORIGIN$1'
$(BUILD)/wheel/libplimsoll.so.0: $(SHARED)
	@mkdir -p $(@D)
	$(CC) $(LINK) -shared -Wl,-soname,$(@F) $(PUBLIC) $(LIBS) $(call BESIDE,) -o $@
$(BUILD)/wheel/plimsoll: $(BUILD)/plimsoll
	@mkdir -p $(@D)
	$(CC) -pie $(LINK) $(BUILD)/cli/main.o $(LIB) $(LIBS) $(call BESIDE,/../lib) -o $@
$(STATIC): $(PUBLIC) $(BUILD)/objects
	$(CC) -r -nostdlib $(PUBLIC) -o $(BUILD)/plimsoll-public.o
	$(OBJCOPY) --localize-hidden $(BUILD)/plimsoll-public.o
	@rm -f $@ && $(AR) rcs $@ $(BUILD)/plimsoll-public.o
# The plug-in contains the few internal functions that it calls: the program and both libraries,
# which load it, export none of them.
$(BUILD)/plimsoll-cuda.so: $(CUDA_OBJS) $(BUILD)/libseam.a
	$(CC) $(LINK) -shared -Wl,-z,defs $(CUDA_OBJS) $(BUILD)/libseam.a $(CUDA_LIBS) $(CUDA_DIRS:%=-Wl,-rpath,%) $(ONEDNN_LIBS) $(SYSTEM) -o $@
# For the wheel and archives: CUDA's libraries are those of pip's nvidia-* packages beside plimsoll,
# or of an installed CUDA.
CUDA_BESIDE := $(foreach d,cu13 cublas cuda_runtime nccl,-Wl,-rpath,'$$ORIGIN/../../nvidia/$d/lib') -Wl,-rpath,/usr/local/cuda/lib64
$(BUILD)/wheel/plimsoll-cuda.so: $(PLUGIN)
	@mkdir -p $(@D)
	$(CC) $(LINK) -shared -Wl,-z,defs $(CUDA_OBJS) $(BUILD)/libseam.a $(CUDA_LIBS) $(CUDA_BESIDE) $(ONEDNN_LIBS) $(SYSTEM) -o $@
$(BUILD)/plimsoll-mpi.so: src/dist/mpi.c src/dist/dist.h $(BUILD)/flags
	$(MPICC) $(filter-out -fopenmp,$(FLAGS)) $(DEP) -MF $@.d -MT $@ -shared $(RELRO) $< -o $@
$(LIB): $(OBJS) $(BUILD)/objects
	@rm -f $@ && $(AR) rcs $@ $(OBJS)
$(BUILD)/%.o: src/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(FLAGS) $(OWN) $(DEP) -c $< -o $@
# Measured profiles of GPUs as C string literals.
$(BUILD)/profiles/%.inc: src/cost/profiles/%.json
	@mkdir -p $(@D)
	sed 's/["\\]/\\&/g; s/^/"/; s/$$/\\n"/' $< >$@
$(BUILD)/cost/gpus.o: $(patsubst src/cost/%.json,$(BUILD)/%.inc,$(wildcard src/cost/profiles/*.json))
# The dependency chain of exp_fast leaves the processor idle; unrolled iterations fill the gaps.
UNROLL := rows/activations attention/attention rows/elementwise rows/norms rows/sums rows/tokens
$(UNROLL:%=$(BUILD)/cpu/%.o): OWN += -funroll-loops
# A plan is the same on every machine: no fused multiply-add, which only some machines have.
EXACT := $(filter $(foreach d,graph run cost passes plan,$(BUILD)/$(d)%) $(foreach d,$(CUDA_ROOMS),$(BUILD)/$(d)/plan%),$(OBJS))
$(EXACT): OWN += -ffp-contract=off
# 4-bit weights have the bits of bitsandbytes, and resized images the bytes of Pillow.
$(BUILD)/base/nf4.o $(BUILD)/data/images/resize_table.o: OWN += -ffp-contract=off
$(CUDA_OBJS): OWN += -isystem $(CUDA_HOME)/include
$(BUILD)/%.cu.o: src/%.cu $(BUILD)/cuda-code
	@mkdir -p $(@D)
	$(NVCC) $(call CUDA_CODE_OF,$<) $(NVFLAGS) -c $< -o $@

TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
HELPERS := $(addprefix $(BUILD)/tests/,compare json_get render forge forge_pth forge_png forge_conversations forge_shapes forge_questions forge_videos forge_volumes pixels labels patches video cuda_seam cuda_ops profile_path)
# -O1 and sanitizers hide value ranges from the compiler, which then gives false warnings.
NO_RANGES := -Wno-format-truncation -Wno-maybe-uninitialized
# Compiled apart, so that a change in src only links them again. -O1 halves the time.
$(TESTS:=.o) $(HELPERS:=.o): $(BUILD)/tests/%.o: tests/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(FLAGS) -O1 $(NO_RANGES) $(DEP) -Itests -c $< -o $@
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(LIB)
	$(CC) $(LINK) $< $(LIB) $(LIBS) $(if $(filter test_%,$*),-lcmocka) -o $@

# clang finds its own OpenMP library only by this flag.
OPENMP_LIB = $(if $(shell $(CC) --version 2>/dev/null | grep -i clang),-fopenmp,-lgomp)
# Programs outside the project use the public header and the flags of pkg-config, which reads
# plimsoll-uninstalled.pc for the build tree. $(call pc,prefix,includedir,libdir) prints it. Its
# rpath lets programs find the library without LD_LIBRARY_PATH; in /usr/lib the loader finds it
# anyway.
pc = sed 's|@PREFIX@|$1|; s|@INCLUDEDIR@|$2|; s|@LIBDIR@|$3|; s|@VERSION@|$(VERSION)|; s|@LIBS@|$(OPENMP_LIB) $(LIBS)|; s| @RPATH@|$(if $(filter /usr,$1),, -Wl,-rpath,$${libdir})|' tools/plimsoll.pc.in
PC := $(BUILD)/plimsoll-uninstalled.pc
$(PC): tools/plimsoll.pc.in include/plimsoll.h $(BUILD)/objects
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
	$(CC) $(FLAGS) -O1 $(NO_RANGES) $^ $(LINK) $(LIBS) -o $@
tests: $(TESTS) $(REPLAYS) $(HELPERS) $(EXAMPLES) $(RELEASED)

# The tests of the CUDA device against the reference kernels need none of the libraries for files
# and configurations, so that they build on a bare machine with a GPU.
SEAM := $(filter $(foreach d,base graph run cost cpu cuda passes plan,$(BUILD)/$(d)/%) $(BUILD)/io/file.o,$(OBJS))
$(BUILD)/libseam.a: $(SEAM) $(BUILD)/objects
	rm -f $@ && $(AR) rcs $@ $(SEAM)
$(BUILD)/bench/bench_cuda_attention $(BUILD)/bench/bench_cuda_update: $(BUILD)/bench/%: bench/%.c $(BUILD)/libseam.a $(PLUGIN)
	@mkdir -p $(@D)
	$(CC) $(FLAGS) $(DEP) -MF $@.d -MT $@ $< $(BUILD)/libseam.a $(LINK) $(ONEDNN_LIBS) $(SYSTEM) -o $@
$(BUILD)/tests/cuda_seam $(BUILD)/tests/cuda_ops: $(BUILD)/tests/%: $(BUILD)/tests/%.o $(BUILD)/libseam.a $(PLUGIN)
	$(CC) $(LINK) $< $(BUILD)/libseam.a $(ONEDNN_LIBS) $(SYSTEM) -o $@

# --- targets for users --------------------------------------------------------

# A build with progress (n of m), after `deps`: as parallel as this make, else on all cores.
BUILD_WITH_PROGRESS = tools/build.sh $(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc))

deps:
	@CC="$(CC)" WITHOUT="$(foreach s,$(filter $(GIVEN),$(LIBRARIES)),$(if $(filter 0,$($s)),$s))" tools/deps.sh
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
# The code of compute capability 7.5 (sm_75) on any GPU: its PTX compiled for that GPU, in f32 and
# f16.
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
$(BUILD)/wheel/libLerc.so.4 $(BUILD)/wheel/libjbig.so.0: tools/stand_in.c
	@mkdir -p $(@D)
	$(CC) $(CSTD) $(WARN) -O2 -fPIC -shared -Wl,-soname,$(@F) $< -o $@
released: $(RELEASED)
wheel: all $(RELEASED)
	@python3 tools/wheel.py $(BUILD) $(BUILD)/wheel
dist: all $(RELEASED)
	@python3 tools/dist.py $(BUILD) dist

# tools/installed.sh prints what a shell needs to use the installation. A plug-in of an earlier
# installation would not match this program.
PREFIX  ?= /usr/local
DESTDIR ?=
prefix  := $(abspath $(patsubst ~/%,$(HOME)/%,$(PREFIX)))
to      := $(DESTDIR)$(prefix)
install: all
	install -d $(to)/bin $(to)/include $(to)/lib/pkgconfig $(to)/share/doc/plimsoll/examples
	install -m 755 $(BUILD)/plimsoll $(to)/bin/
	install -m 644 include/plimsoll.h include/plimsoll_ops.h $(to)/include/
	install -m 644 $(STATIC) $(to)/lib/
	rm -f $(to)/lib/plimsoll-cuda.so $(to)/lib/plimsoll-mpi.so
	install -m 755 $(SHARED) $(PLUGIN) $(MPI_PLUGIN) $(to)/lib/
	ln -sf $(notdir $(SHARED)) $(to)/lib/libplimsoll.so
	$(call pc,$(prefix),$(prefix)/include,$(prefix)/lib) >$(to)/lib/pkgconfig/plimsoll.pc
	install -m 644 LICENSE THIRD-PARTY.md README.md CHANGELOG.md $(to)/share/doc/plimsoll/
	@BUILD=$(BUILD) tools/extras.sh $(to)/share
	cp -R docs $(to)/share/doc/plimsoll/
	install -m 644 examples/* $(to)/share/doc/plimsoll/examples/
	@tools/installed.sh "$(prefix)" "$(DESTDIR)"

# The page "Does it fit on my GPU?" (docs/guides/page.md), build/page: a folder, no server. The
# planner in it is this C as WebAssembly: what plans, and the readers of data for the sizes of their
# buffers. PAGE_LACKS have what a page does not (libraries, files, kernels, a GPU); src/page/ is
# there instead, and src/page/absent.txt lists what a plan never calls. Only functions that are
# reached are linked.
EMCC       ?= emcc
PAGE_ROOMS := base graph passes passes/rewrites passes/techniques plan cost models planning config compare adapter run page
PAGE_LACKS := base/system compare/advice compare/diagnosis planning/this_machine adapter/merge
PAGE_ALSO  := report/lives io/json io/json_scan io/value io/yaml_text io/table cuda/plan_kernels batch/batch_plan batch/embed batch/feed \
              text/template/anyres data/text/rows folder/weights_4bit data/loader data/fill data/ring data/reader data/clips data/image_rows \
              data/image_list data/question_rows data/order data/augment data/formats/packed $(patsubst src/%.c,%,$(wildcard src/cuda/*/plan_*.c \
              src/data/masks/*.c src/data/images/resize*.c src/data/images/patch*.c src/data/images/processor*.c \
              src/data/images/image_source.c src/data/images/image_processor.c src/data/images/image_reader.c))
PAGE_SRCS  := $(filter-out $(PAGE_LACKS:%=src/%.c),$(foreach d,$(PAGE_ROOMS),$(wildcard src/$(d)/*.c)) $(PAGE_ALSO:%=src/%.c))
PAGE_OBJS  := $(PAGE_SRCS:src/%.c=$(BUILD)/page/obj/%.o)
PAGE_FLAGS := $(CSTD) $(WARN) -O3 -mbulk-memory -ffp-contract=off -Isrc -Iinclude -I$(BUILD)
PAGE_LINK  := -O2 -mbulk-memory --no-entry -s STANDALONE_WASM=1 -s ALLOW_MEMORY_GROWTH=1 -s MAXIMUM_MEMORY=4GB -s ERROR_ON_UNDEFINED_SYMBOLS=0
$(call keep,page-flags,$(EMCC) $(PAGE_FLAGS))
$(call keep,page-objects,$(PAGE_LINK) $(PAGE_OBJS))
$(BUILD)/page/obj/%.o: src/%.c $(BUILD)/page-flags
	@mkdir -p $(@D)
	$(EMCC) $(PAGE_FLAGS) $(DEP) -c $< -o $@
$(BUILD)/page/obj/cost/gpus.o: $(patsubst src/cost/%.json,$(BUILD)/%.inc,$(wildcard src/cost/profiles/*.json))
$(BUILD)/page/obj/planner.wasm: $(PAGE_OBJS) src/page/absent.txt $(BUILD)/page-objects
	@rm -f $(@D)/libpage.a && emar rcs $(@D)/libpage.a $(PAGE_OBJS)
	@echo '$(EMCC) ... -o $@'; $(EMCC) $(PAGE_LINK) $(BUILD)/page/obj/page/*.o $(@D)/libpage.a -o $@ 2>$@.said || { cat $@.said; rm -f $@; exit 1; }
	@sed -n 's/.*undefined symbol: \([A-Za-z0-9_]*\).*/\1/p' $@.said | LC_ALL=C sort -u | diff src/page/absent.txt - || { echo 'what a plan calls is not what src/page/absent.txt leaves out' >&2; rm -f $@; exit 1; }
# The planner as text, because a page that is opened as a file cannot read another one.
$(BUILD)/page/planner.js: $(BUILD)/page/obj/planner.wasm
	@{ printf 'const PLANNER = "'; base64 -w0 $<; printf '";\n'; } >$@
PAGE := $(patsubst page/%,$(BUILD)/page/%,$(wildcard page/*)) $(BUILD)/page/planner.js
$(BUILD)/page/%: page/%
	@mkdir -p $(@D)
	cp $< $@
page:
ifeq ($(shell command -v $(EMCC)),)
	@echo 'make page: there is no emcc; apt-get install emscripten' >&2
else
	+@$(MAKE) --no-print-directory $(PAGE)
	@echo 'The page is $(BUILD)/page/index.html: open it in a browser.'
endif

site: page
	@command -v cmark-gfm >/dev/null || { echo 'make site: there is no cmark-gfm; apt-get install cmark-gfm' >&2; exit 1; }
	@python3 tools/site.py $(BUILD)/page $(BUILD)/site

SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer $(NO_RANGES)
asan: deps
	+@$(BUILD_WITH_PROGRESS) BUILD=$(BUILD)/asan CUDA=0 OPT='-O1 -g' HARDEN= EXTRA='$(SANITIZE)' all tests
	@BUILD=$(BUILD)/asan tools/test.sh unit replay golden

FUZZ_SECONDS ?= 60
FUZZ_FLAGS   := $(CSTD) -g -O1 -DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION -fno-sanitize-recover=undefined -Isrc -Iinclude -I$(BUILD)
# Every reader of files, without the kernels: a target links with what it calls.
FUZZ_OBJS    := $(patsubst src/%.c,$(BUILD)/fuzz/src/%.o,$(filter-out src/cpu/% src/cuda/% src/cli/% src/lib/% src/calibrate/% src/infer/%,$(SRCS)) src/cuda/products/autotune_file.c src/infer/image_prompts.c)
$(BUILD)/fuzz/src/%.o: src/%.c
	@mkdir -p $(@D)
	clang $(FUZZ_FLAGS) $(OWN) $(DEP) -fsanitize=fuzzer-no-link,address,undefined -c $< -o $@
$(BUILD)/fuzz/src/cost/gpus.o: $(patsubst src/cost/%.json,$(BUILD)/%.inc,$(wildcard src/cost/profiles/*.json))
$(BUILD)/fuzz/libparts.a: $(FUZZ_OBJS)
	@rm -f $@ && $(AR) rcs $@ $(FUZZ_OBJS)
FUZZERS      := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
$(FUZZERS): $(BUILD)/fuzz/%: tests/fuzz/%.c tests/fuzz/machine.c $(BUILD)/fuzz/libparts.a
	clang $(FUZZ_FLAGS) -fsanitize=fuzzer,address,undefined $^ $(READERS) $(SYSTEM) -o $@
fuzz: deps
	@CC="$(CC)" tools/deps.sh fuzz
	+@$(BUILD_WITH_PROGRESS) $(FUZZERS)
	@BUILD=$(BUILD) SECONDS_EACH=$(FUZZ_SECONDS) tools/fuzz.sh

BENCHES := $(patsubst bench/%.c,$(BUILD)/bench/%,$(filter-out bench/bench_cuda_%,$(wildcard bench/bench_*.c)))
$(BUILD)/bench/%: bench/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(FLAGS) $(DEP) -MF $@.d -MT $@ -Itests $< $(LIB) $(LINK) $(LIBS) -lcmocka -o $@
$(BUILD)/bench/mpi_ranks: bench/mpi_ranks.c $(LIB)
	@mkdir -p $(@D)
	$(MPICC) $(FLAGS) $(DEP) -MF $@.d -MT $@ $< $(LIB) $(LINK) $(LIBS) -o $@
bench: deps
	+@$(BUILD_WITH_PROGRESS) $(BENCHES)
	@for b in $(filter-out %/bench_loader %/bench_tokenize,$(BENCHES)); do $$b || exit 1; done # those two need files: bench/data.sh, bench/peer_tokenize.py

clean:
	rm -rf $(BUILD)
.PHONY: all tests examples released wheel dist page site install deps test test-cuda test-cuda-75 test-slurm check demo docs quotes asan fuzz bench clean

-include $(PAGE_OBJS:.o=.d) $(MPI_PLUGIN:=.d) $(FUZZ_OBJS:.o=.d) $(OBJS:.o=.d) $(CUDA_OBJS:.o=.d) $(BUILD)/cli/main.d $(TESTS:=.d) $(HELPERS:=.d) $(BENCHES:=.d) $(patsubst bench/%.c,$(BUILD)/bench/%.d,$(wildcard bench/bench_cuda_*.c))
