package attachframe

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestGoldenBytes(t *testing.T) {
	t.Parallel()
	got := Append(nil, Stdout, []byte("hi"))
	got = AppendJSON(got, Resize, Size{Rows: 24, Cols: 80})
	got = AppendJSON(got, Exit, ExitStatus{ExitCode: 3})
	want := "\x01\x00\x00\x00\x00\x00\x00\x02hi" +
		"\x03\x00\x00\x00\x00\x00\x00\x15{\"rows\":24,\"cols\":80}" +
		"\x04\x00\x00\x00\x00\x00\x00\x0f{\"exit_code\":3}"
	if string(got) != want {
		t.Errorf("frames are %q", got)
	}
	r := NewReader(iotest.OneByteReader(bytes.NewReader(got)))
	for _, w := range []struct {
		t Type
		p string
	}{{Stdout, "hi"}, {Resize, `{"rows":24,"cols":80}`}, {Exit, `{"exit_code":3}`}} {
		typ, payload, err := r.Next()
		if err != nil || typ != w.t || string(payload) != w.p {
			t.Errorf("frame %d %q, %v", typ, payload, err)
		}
	}
	if _, _, err := r.Next(); err != io.EOF { //nolint:errorlint // exactly
		t.Errorf("after the last: %v", err)
	}
}

func TestBrokenFrames(t *testing.T) {
	t.Parallel()
	whole := Append(nil, Stdin, []byte("abc"))
	for n := 1; n < len(whole); n++ {
		if _, _, err := NewReader(bytes.NewReader(whole[:n])).Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %d bytes: %v", n, err)
		}
	}
	if _, _, err := NewReader(bytes.NewReader([]byte{0, 0, 0, 0, 0, 0x10, 0, 1})).Next(); err == nil {
		t.Error("a frame that is too large was taken")
	}
	if _, ok := (Size{Rows: -1, Cols: 80}).Clamp(); ok {
		t.Error("a negative size says something")
	}
	if s, ok := (Size{Rows: 1 << 20, Cols: 2}).Clamp(); !ok || s != (Size{65535, 2}) {
		t.Errorf("clamped to %+v", s)
	}
}

func FuzzReader(f *testing.F) {
	f.Add(Append(nil, Stdin, []byte("x")))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewReader(bytes.NewReader(data))
		var again []byte
		for {
			typ, payload, err := r.Next()
			if err != nil {
				break
			}
			again = Append(again, typ, payload)
		}
		if len(again) > len(data) {
			t.Errorf("%d bytes of frames in %d", len(again), len(data))
		}
	})
}
