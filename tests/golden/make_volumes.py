"""Writes tests/golden/volumes: small volumes of every kind, by the libraries that users have, and what these libraries read back.

    pip install numpy nibabel tifffile imagecodecs pydicom pylibjpeg pylibjpeg-openjpeg SimpleITK safetensors pillow
    python tests/golden/make_volumes.py

expected.safetensors has, for FILE and a view, the values, as float32 where that is exact, else float64: "FILE|axial|0" is [slices][rows][columns](, 3), 0 the modality,
and "FILE|axial|spacing" the distance of columns, rows and slices. Views are those of src/data/volumes/volume.h.
"""
import os, pathlib, shutil
import nibabel, numpy, pydicom, SimpleITK, tifffile
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian, RLELossless, JPEG2000Lossless
from safetensors.numpy import save_file

here = pathlib.Path(__file__).parent / "volumes"
shutil.rmtree(here, ignore_errors=True)
os.makedirs(here)
rng = numpy.random.default_rng(7)
expected = {}


def put(name, axis, values, spacing, modality=0):
    wide, narrow = numpy.ascontiguousarray(values, dtype=numpy.float64), numpy.ascontiguousarray(values, dtype=numpy.float32)
    expected[f"{name}|{axis}|{modality}"] = narrow if numpy.array_equal(wide, narrow) else wide
    expected[f"{name}|{axis}|spacing"] = numpy.array(spacing, dtype=numpy.float64)


def put_views(name, image, modality=0):
    """By nibabel: the array turned to RAS+, then cut."""
    ras = nibabel.as_closest_canonical(image)
    a = numpy.asarray(ras.dataobj)
    if a.dtype.names:
        a = numpy.stack([a[n] for n in a.dtype.names], -1)
    elif a.ndim == 4:
        a = a[..., modality]
    x, y, z = nibabel.affines.voxel_sizes(ras.affine)
    t = lambda s: numpy.swapaxes(s, 0, 1)
    put(name, "axial", numpy.stack([t(a[::-1, ::-1, k]) for k in range(a.shape[2])]), (x, y, z), modality)
    put(name, "coronal", numpy.stack([t(a[::-1, k, ::-1]) for k in range(a.shape[1])]), (x, z, y), modality)
    put(name, "sagittal", numpy.stack([t(a[k, ::-1, ::-1]) for k in range(a.shape[0])]), (y, z, x), modality)


def nifti(name, data, affine=None, kind=nibabel.Nifti1Image, modalities=(0,)):
    image = kind(data, affine if affine is not None else numpy.diag([0.7, 0.8, 2.5, 1]), dtype=data.dtype)
    nibabel.save(image, here / name)
    back = nibabel.load(here / name)
    for m in modalities:
        put_views(name, back, m)


# NIfTI: every type, byte orders, versions, orientations, scaling, modalities.
for t in "int8 uint8 int16 uint16 int32 uint32 int64 uint64".split():
    info = numpy.iinfo(t)
    nifti(f"{t}.nii", rng.integers(max(info.min, -(1 << 40)), min(info.max, 1 << 40), (5, 4, 3), dtype=t, endpoint=True))
for t in "float32 float64".split():
    nifti(f"{t}.nii.gz", rng.normal(0, 100, (5, 4, 3)).astype(t))
ct = rng.integers(-1024, 1500, (7, 6, 5), dtype=numpy.int16)
lps = numpy.array([[-0.9, 0, 0, 90], [0, -0.9, 0, 80], [0, 0, 3, -70], [0, 0, 0, 1]])
asl = numpy.array([[0, 0, -1.5, 5], [2.0, 0, 0, 6], [0, 1.25, 0, 7], [0, 0, 0, 1]])
down = numpy.array([[1.0, 0, 0, 0], [0, -1, 0, 0], [0, 0, -2, 0], [0, 0, 0, 1]])
turn = numpy.eye(4)
turn[:3, :3] = numpy.array([[0.98, -0.17, 0.05], [0.17, 0.98, 0.03], [-0.055, -0.02, 0.99]]) @ numpy.diag([1, 1.1, 4])
nifti("lps.nii.gz", ct, lps)
nifti("asl.nii", ct, asl)
nifti("down.nii", ct, down)
nifti("oblique.nii.gz", ct, turn)
nifti("second.nii.gz", ct, lps, nibabel.Nifti2Image)
big = nibabel.Nifti1Image(ct.astype(">i2"), lps, header=nibabel.Nifti1Header(endianness=">"))
nibabel.save(big, here / "big.nii")
put_views("big.nii", nibabel.load(here / "big.nii"))


raw = nibabel.Nifti1Image((ct + 1024).astype(numpy.int16), lps)
raw.header.set_slope_inter(2, -1000)
nibabel.save(raw, here / "slope.nii")  # nibabel divides by the slope: what is read back counts
put_views("slope.nii", nibabel.load(here / "slope.nii"))
image = nibabel.Nifti1Image(ct, None)
image.header.set_qform(turn, 1)
image.header.set_sform(None, 0)
nibabel.save(image, here / "qform.nii.gz")
put_views("qform.nii.gz", nibabel.load(here / "qform.nii.gz"))
image = nibabel.Nifti1Image(ct, None)  # neither qform nor sform
image.header.set_zooms((0.5, 0.75, 3))
nibabel.save(image, here / "noform.nii")
assert nibabel.load(here / "noform.nii").header["sform_code"] == 0 == nibabel.load(here / "noform.nii").header["qform_code"]
put_views("noform.nii", nibabel.load(here / "noform.nii"))
nifti("four.nii.gz", rng.integers(0, 900, (6, 5, 4, 3), dtype=numpy.int16), lps, modalities=(0, 2))
rgb = numpy.empty((5, 4, 3), dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
for c in "RGB":
    rgb[c] = rng.integers(0, 256, (5, 4, 3))
nifti("rgb.nii", rgb, lps)
labels = numpy.zeros((7, 6, 5), numpy.uint8)
labels[2:5, 1:4, 1:3] = 1
labels[4:6, 3:5, 2:4] = 2
nifti("labels.nii.gz", labels, lps)
nifti("labels_float.nii.gz", labels.astype(numpy.float64), lps)

several = numpy.zeros((6, 5, 4), numpy.uint8)  # of four.nii.gz
several[:, :, 1] = 1
several[1::2, :, 2] = 2
nifti("four_labels.nii.gz", several, lps)
series = numpy.zeros((40, 36, 3), numpy.uint8)  # of the folder series, in its geometry
series[8:20, 5:15, 1] = 1
nifti("series_labels.nii.gz", series, numpy.array([[-0.7, 0, 0, 10], [0, -0.8, 0, 20], [0, 0, 2.5, 5], [0, 0, 0, 1]]))

# TIFF, by tifffile.
def tiff(name, data, **options):
    tifffile.imwrite(here / name, data, **options)
    back = tifffile.imread(here / name)
    colour = options.get("photometric") == "rgb"
    if options.get("planarconfig") == "separate":
        back = numpy.moveaxis(back, 0, -1)
    if back.ndim == (3 if colour else 2):
        back = back[None]
    if colour and back.shape[-1] == 4:
        back = back[..., :3]
    put(name, "axial", back, (1, 1, 1))


grey8 = rng.integers(0, 256, (37, 41), dtype=numpy.uint8)
grey16 = rng.integers(0, 4096, (37, 41), dtype=numpy.uint16)
colour8 = rng.integers(0, 256, (37, 41, 3), dtype=numpy.uint8)
tiff("grey8.tif", grey8, photometric="minisblack")
tiff("grey16.tif", grey16, photometric="minisblack", rowsperstrip=5)
tiff("grey16_big.tif", grey16, photometric="minisblack", byteorder=">")
tiff("grey16_lzw.tif", grey16, photometric="minisblack", compression="lzw", predictor=True, rowsperstrip=8)
tiff("grey16_tiles.tif", grey16, photometric="minisblack", tile=(16, 16), compression="zlib")
tiff("colour8.tif", colour8, photometric="rgb")
tiff("colour8_tiles.tif", colour8, photometric="rgb", tile=(16, 16))
tiff("colour8_planar.tif", numpy.moveaxis(colour8, -1, 0), photometric="rgb", planarconfig="separate")
tiff("colour16.tif", (colour8.astype(numpy.uint16) * 257), photometric="rgb", compression="zlib")
tiff("alpha8.tif", numpy.concatenate([colour8, colour8[..., :1]], -1), photometric="rgb", extrasamples=["unassalpha"])
tiff("float32.tif", rng.normal(0, 1, (37, 41)).astype(numpy.float32), photometric="minisblack")
tiff("int16.tif", rng.integers(-1000, 1000, (37, 41), dtype=numpy.int16), photometric="minisblack")
tiff("stack16.tif", rng.integers(0, 4096, (4, 21, 23), dtype=numpy.uint16), photometric="minisblack")
tiff("stack_labels.tif", rng.integers(0, 3, (4, 21, 23), dtype=numpy.uint8), photometric="minisblack", compression="zlib")
tiff("bigtiff.tif", grey8, photometric="minisblack", bigtiff=True)

# DICOM, by pydicom; values by pydicom, order and spacing by SimpleITK.
def dicom(folder, volume, syntax=ExplicitVRLittleEndian, coronal=False, **changes):
    os.makedirs(here / folder)
    series = pydicom.uid.generate_uid(entropy_srcs=[folder])
    for k in rng.permutation(len(volume)):
        meta = FileMetaDataset()
        meta.TransferSyntaxUID = syntax
        meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.2"
        meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid(entropy_srcs=[folder, str(k)])
        d = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
        d.SOPClassUID, d.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
        d.Modality, d.PatientName, d.PatientID = "CT", "Phantom", "1"
        d.StudyInstanceUID, d.SeriesInstanceUID, d.FrameOfReferenceUID = "1.2.3.1", series, "1.2.3.2"
        d.InstanceNumber = int(k) + 1
        item = pydicom.Dataset()
        item.CodeValue = "1"
        d.ProcedureCodeSequence = pydicom.Sequence([item])
        d.ImageOrientationPatient = [1, 0, 0, 0, 0, -1] if coronal else [1, 0, 0, 0, 1, 0]
        d.ImagePositionPatient = [-10.0, 7.0 + 3 * float(k), 5.0] if coronal else [-10.0, -20.0, 5.0 + 2.5 * float(k)]
        d.PixelSpacing, d.SliceThickness = [0.8, 0.7], 2.5
        d.RescaleSlope, d.RescaleIntercept = 1, -1024
        frame = volume[k]
        d.Rows, d.Columns = frame.shape[:2]
        d.SamplesPerPixel = 3 if frame.ndim == 3 else 1
        d.PhotometricInterpretation = "RGB" if frame.ndim == 3 else "MONOCHROME2"
        if frame.ndim == 3:
            d.PlanarConfiguration = 0
            d.RescaleSlope, d.RescaleIntercept = 1, 0
        d.BitsAllocated = frame.dtype.itemsize * 8
        d.BitsStored = changes.get("stored", d.BitsAllocated)
        d.HighBit = d.BitsStored - 1
        d.PixelRepresentation = int(frame.dtype.kind == "i")
        d.PixelData = frame.tobytes()
        if syntax in (RLELossless, JPEG2000Lossless):
            d.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
            d.compress(syntax, frame, generate_instance_uid=False)
        if syntax == "1.2.840.10008.1.2.4.70":
            import imagecodecs
            d.PixelData = pydicom.encaps.encapsulate([imagecodecs.ljpeg_encode(frame, bitspersample=int(d.BitsStored))])
            d["PixelData"].is_undefined_length = True
        d.save_as(here / folder / f"{int(rng.integers(1 << 30)):08x}.dcm", enforce_file_format=True)
    if frame.ndim == 3:
        put(folder, "axial", volume, (0.7, 0.8, 2.5))
        return
    if coronal:
        # LPS positions grow to the back, and slices are numbered from back to front.
        put(folder, "coronal", volume[::-1].astype(float) - 1024, (0.7, 0.8, 3))
        return
    put(folder, "axial", volume.astype(float) - 1024, (0.7, 0.8, 2.5))
    try:
        reader = SimpleITK.ImageSeriesReader()
        reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(here / folder)))
        read = SimpleITK.DICOMOrient(reader.Execute(), "LPS")
        assert numpy.array_equal(SimpleITK.GetArrayFromImage(read).astype(float), volume.astype(float) - 1024), folder
        assert numpy.allclose(read.GetSpacing(), (0.7, 0.8, 2.5)), folder
    except RuntimeError as e:
        print(folder, "not read by SimpleITK:", e)


stored = rng.integers(0, 4096, (3, 36, 40), dtype=numpy.uint16)
dicom("series", stored, stored=12)
dicom("series_implicit", stored, ImplicitVRLittleEndian, stored=12)
dicom("series_signed", (stored.astype(numpy.int16) - 2000), stored=16)
dicom("series_rle", stored, RLELossless, stored=12)
dicom("series_j2k", stored, JPEG2000Lossless, stored=12)
dicom("series_lossless", stored, pydicom.uid.UID("1.2.840.10008.1.2.4.70"), stored=12)
dicom("series_coronal", stored, stored=12, coronal=True)
dicom("series_colour", rng.integers(0, 256, (2, 10, 12, 3), dtype=numpy.uint8))

save_file(expected, here / "expected.safetensors")
print(sum(f.stat().st_size for f in here.rglob("*") if f.is_file()), "bytes")
