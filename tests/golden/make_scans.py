"""Writes tests/golden/scans: volumes in other geometries and encodings than those of make_volumes.py, and what the libraries that users have read of them.

    pip install numpy nibabel tifffile pydicom SimpleITK safetensors pillow
    python tests/golden/make_scans.py

expected.safetensors is as that of make_volumes.py. labels_*.nii.gz are tests/golden/volumes/labels.nii.gz by nibabel in other orientations: the same
labels at the same place. Files that are refused have no entry: complex64.tif, missing_strip.tif, damaged_g4.tif, gap, uneven, and the labels shifted.nii.gz.
"""
import io, os, pathlib, shutil, struct
import nibabel, numpy, pydicom, SimpleITK, tifffile
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.filewriter import dcmwrite
from pydicom.pixels import apply_modality_lut
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian, JPEGBaseline8Bit, generate_uid
from safetensors.numpy import save_file

folder = pathlib.Path(__file__).parent
here = folder / "scans"
shutil.rmtree(here, ignore_errors=True)
os.makedirs(here)
rng = numpy.random.default_rng(11)
expected = {}


def put(name, axis, values, spacing):
    wide, narrow = numpy.ascontiguousarray(values, dtype=numpy.float64), numpy.ascontiguousarray(values, dtype=numpy.float32)
    expected[f"{name}|{axis}|0"] = narrow if numpy.array_equal(wide, narrow) else wide
    expected[f"{name}|{axis}|spacing"] = numpy.array(spacing, dtype=numpy.float64)


# Labels in other orientations.
labels = nibabel.load(folder / "volumes" / "labels.nii.gz")
for code in "RAS LAS PIR SLA ASL IPR".split():
    turn = nibabel.orientations.ornt_transform(nibabel.io_orientation(labels.affine), nibabel.orientations.axcodes2ornt(code))
    turned = labels.as_reoriented(turn)
    assert "".join(nibabel.aff2axcodes(turned.affine)) == code
    nibabel.save(turned, here / f"labels_{code}.nii.gz")
moved = labels.affine.copy()
moved[:3, 3] += 0.5 * labels.affine[:3, 0]
nibabel.save(nibabel.Nifti1Image(numpy.asarray(labels.dataobj), moved), here / "shifted.nii.gz")
plain = nibabel.Nifti1Image(numpy.asarray(labels.dataobj), None)  # neither qform nor sform
nibabel.save(plain, here / "unplaced.nii.gz")
series = nibabel.as_closest_canonical(nibabel.load(folder / "volumes" / "series_labels.nii.gz"))
nibabel.save(series, here / "series_labels.nii.gz")


# TIFF.
def tiff(name, back):
    put(name, "axial", back[None], (1, 1, 1))


half = numpy.concatenate([rng.normal(0, 100, (9, 11)).astype(numpy.float16), numpy.array([[0, -0.0, 6e-8, 6e-5, 65504, -65504, 1, 2, 3, 4, 0.333]], numpy.float16)])
for name, order in (("half.tif", "<"), ("half_big.tif", ">")):
    tifffile.imwrite(here / name, half, photometric="minisblack", byteorder=order)
    tiff(name, tifffile.imread(here / name).astype(numpy.float64))
bits = rng.integers(0, 2, (9, 13), dtype=numpy.uint8)


def bilevel(name, photometric, compression, data, more=()):
    """A TIFF of one bit a pixel in one strip."""
    tags = sorted([(256, 3, 1, bits.shape[1]), (257, 3, 1, bits.shape[0]), (258, 3, 1, 1), (259, 3, 1, compression), (262, 3, 1, photometric), (273, 4, 1, 8), (277, 3, 1, 1), (278, 3, 1, bits.shape[0]), (279, 4, 1, len(data)), *more])
    end = 8 + len(data) + len(data) % 2
    table = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *t) for t in tags) + bytes(4)
    colours = struct.pack("<6H", 0x1000, 0xf000, 0x2000, 0xe000, 0x3000, 0xd000)
    table = table.replace(struct.pack("<HHII", 320, 3, 6, 0), struct.pack("<HHII", 320, 3, 6, end + len(table)))
    (here / name).write_bytes(b"II*\0" + struct.pack("<I", end) + data.ljust(end - 8, b"\0") + table + colours)


packed = numpy.packbits(bits, axis=1).tobytes()
bilevel("palette1.tif", 3, 1, packed, [(320, 3, 6, 0)])
tiff("palette1.tif", numpy.asarray(Image.open(here / "palette1.tif").convert("RGB")))
expected["palette1.tif|numbers"] = bits.astype(numpy.float32)
faxed = io.BytesIO()
Image.fromarray(bits * 255).convert("1").save(faxed, "TIFF", compression="group4")
faxed.seek(0)
page = tifffile.TiffFile(faxed).pages[0]
g4 = faxed.getvalue()[page.dataoffsets[0]:page.dataoffsets[0] + page.databytecounts[0]]
bilevel("g4.tif", int(page.photometric), 4, g4)
tiff("g4.tif", bits * 255.0)
bilevel("damaged_g4.tif", int(page.photometric), 4, g4[:6] + bytes([g4[6] ^ 0x3c]) + g4[7:])
tifffile.imwrite(here / "complex64.tif", (rng.normal(0, 1, (4, 5)) + 1j).astype(numpy.complex64))
tifffile.imwrite(here / "missing_strip.tif", rng.integers(0, 256, (6, 5), dtype=numpy.uint8), photometric="minisblack", rowsperstrip=2, metadata=None)
whole = bytearray((here / "missing_strip.tif").read_bytes())
for tag in (273, 279):  # of the offsets and byte counts of three strips two are listed
    at = whole.index(struct.pack("<HHI", tag, 4 if struct.pack("<HHI", tag, 4, 3) in whole else 3, 3))
    whole[at + 4] = 2
(here / "missing_strip.tif").write_bytes(whole)


# DICOM. Values by pydicom and order by SimpleITK, whose DICOMOrient names the ways that columns,
# rows and slices run.
def header(frame, uid, k, position, orientation, syntax):
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = syntax
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.2"
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[uid, str(k)])
    d = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    d.SOPClassUID, d.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    d.Modality, d.PatientID, d.SeriesInstanceUID = "CT", "one", uid
    d.StudyInstanceUID, d.FrameOfReferenceUID, d.InstanceNumber = "1.2.3.1", "1.2.3.2", k + 1
    d.ImageOrientationPatient, d.ImagePositionPatient = [float(x) for x in orientation], [float(x) for x in position]
    d.PixelSpacing, d.SliceThickness = [0.75, 0.5], 2
    d.Rows, d.Columns = frame.shape[:2]
    d.SamplesPerPixel, d.PhotometricInterpretation = (3, "RGB") if frame.ndim == 3 else (1, "MONOCHROME2")
    if frame.ndim == 3:
        d.PlanarConfiguration = 0
    d.BitsAllocated = d.BitsStored = frame.dtype.itemsize * 8
    d.HighBit, d.PixelRepresentation = d.BitsStored - 1, int(frame.dtype.kind == "i")
    d.PixelData = frame.tobytes()
    return d


def dicom(name, volume, orientation=(1, 0, 0, 0, 1, 0), step=2.0, skip=(), syntax=ExplicitVRLittleEndian, change=None, at=None):
    os.makedirs(here / name)
    row, column = numpy.array(orientation[:3], float), numpy.array(orientation[3:], float)
    uid = generate_uid(entropy_srcs=[name])
    for k, frame in enumerate(volume):
        if k in skip:
            continue
        position = numpy.array([-20.0, 30.0, 40.0]) + numpy.cross(row, column) * (at[k] if at else step * k)
        d = header(frame, uid, k, position, orientation, syntax)
        if change:
            change(d, frame)
        d.save_as(here / name / f"{(k * 7 + 3) % 11:02}.dcm", enforce_file_format=True)


views = {"axial": "LPS", "coronal": "LIA", "sagittal": "PIR"}


def by_itk(name, axis):
    reader = SimpleITK.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(here / name)))
    read = SimpleITK.DICOMOrient(reader.Execute(), views[axis])
    put(name, axis, SimpleITK.GetArrayFromImage(read), read.GetSpacing())


ways = {"axial": ["1 0 0 0 1 0", "-1 0 0 0 1 0", "1 0 0 0 -1 0", "0 1 0 1 0 0", "0 -1 0 1 0 0"], "coronal": ["1 0 0 0 0 -1", "0 0 1 1 0 0"], "sagittal": ["0 1 0 0 0 -1", "0 0 1 0 -1 0"]}
for axis, each in ways.items():
    for i, way in enumerate(each):
        for step in (2.0, -2.0) if i == 0 else (2.0,):
            name = f"{axis}_{i}{'_down' if step < 0 else ''}"
            dicom(name, rng.integers(0, 256, (3, 5, 4), dtype=numpy.uint8), [float(x) for x in way.split()], step)
            by_itk(name, axis)
dicom("oblique", rng.integers(0, 256, (3, 5, 4), dtype=numpy.uint8), (0.96, 0.28, 0, -0.28, 0.96, 0))
by_itk("oblique", "axial")


def by_pydicom(name):
    files = sorted((pydicom.dcmread(f) for f in (here / name).iterdir()), key=lambda d: d.ImagePositionPatient[2])
    put(name, "axial", numpy.stack([apply_modality_lut(d.pixel_array, d) for d in files]), (0.5, 0.75, 2 if len(files) > 1 else 1))


def with_lut(first, entries, bits, vr):
    def change(d, frame):
        item = pydicom.Dataset()
        item.add_new(0x00283002, "SS" if d.PixelRepresentation else "US", [len(entries), first, bits])
        item.add_new(0x00283006, vr, struct.pack(f"<{len(entries)}H", *entries) if vr == "OW" else [int(x) for x in entries])
        item.ModalityLUTType = "US"
        d.ModalityLUTSequence = pydicom.Sequence([item])
    return change


steps = rng.integers(0, 65536, 20)
dicom("lut", rng.integers(-20, 20, (2, 5, 4), dtype=numpy.int16), change=with_lut(-8, steps, 16, "US"))
dicom("lut_bytes", rng.integers(0, 256, (2, 5, 4), dtype=numpy.uint8), change=with_lut(100, steps, 16, "OW"), syntax=ImplicitVRLittleEndian)
by_pydicom("lut"), by_pydicom("lut_bytes")


def jpeg_of_rgb(d, frame):
    out = io.BytesIO()
    Image.merge("YCbCr", [Image.fromarray(frame[..., c]) for c in range(3)]).save(out, "JPEG", quality=100, subsampling=0)  # the planes are RGB...
    whole = out.getvalue()
    assert whole[2:4] == b"\xff\xe0" and whole[6:10] == b"JFIF" and b"Adobe" not in whole
    d.PixelData = pydicom.encaps.encapsulate([whole[:2] + whole[4 + struct.unpack(">H", whole[4:6])[0]:]])  # ...and no marker says what they are
    d["PixelData"].is_undefined_length = True


dicom("jpeg_rgb", numpy.kron(rng.integers(0, 256, (1, 2, 3, 3), dtype=numpy.uint8), numpy.ones((1, 8, 8, 1), numpy.uint8)), syntax=JPEGBaseline8Bit, change=jpeg_of_rgb)
by_pydicom("jpeg_rgb")

# Implicit elements in a file whose syntax is explicit; and a private sequence of unknown
# representation, whose items are implicit.
for name, implicit in (("implicit", True), ("unknown", False)):
    os.makedirs(here / name)
    frame = rng.integers(0, 256, (5, 4), dtype=numpy.uint8)
    d = header(frame, generate_uid(entropy_srcs=[name]), 0, (0, 0, 0), (1, 0, 0, 0, 1, 0), ExplicitVRLittleEndian)
    whole, data = io.BytesIO(), io.BytesIO()
    dcmwrite(whole, d, enforce_file_format=True)
    inner = pydicom.filebase.DicomBytesIO()
    inner.is_little_endian, inner.is_implicit_VR = True, implicit
    del d.preamble
    pydicom.filewriter.write_dataset(inner, pydicom.Dataset({e.tag: e for e in d}))
    meta = whole.getvalue()[:144 + struct.unpack("<I", whole.getvalue()[140:144])[0]]
    item = struct.pack("<HHI", 9, 0x1001, 2) + b"x "
    odd = struct.pack("<HH2sHI", 7, 0x1001, b"UN", 0, 0xffffffff) + struct.pack("<HHI", 0xfffe, 0xe000, 0xffffffff) + item + struct.pack("<HHI", 0xfffe, 0xe00d, 0) + struct.pack("<HHI", 0xfffe, 0xe0dd, 0)
    (here / name / "1.dcm").write_bytes(meta + (b"" if implicit else odd) + inner.getvalue())
    put(name, "axial", pydicom.dcmread(here / name / "1.dcm").pixel_array[None], (0.5, 0.75, 1))

tiny = rng.integers(0, 256, (6, 2, 2), dtype=numpy.uint8)
dicom("gap", tiny, skip=(3,))
dicom("uneven", tiny[:4], at=[0, 2, 4, 6.9])

save_file(expected, here / "expected.safetensors")
print(sum(f.stat().st_size for f in here.rglob("*") if f.is_file()), "bytes in", sum(f.is_file() for f in here.rglob("*")), "files")
