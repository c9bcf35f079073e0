// Package attachframe is the framing of fuse-attach/1, in which terminals and
// the output of processes travel: 8 bytes of header (type, three zeros, length,
// big-endian), then the payload.
package attachframe

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// Protocol is the name in the Upgrade header, and WebSocketProtocol that of a
// WebSocket whose binary messages hold a frame each.
const (
	Protocol          = "fuse-attach/1"
	WebSocketProtocol = "fuse-attach.v1"
)

// MediaType is that of an answer that consists of frames.
const MediaType = "application/vnd.fuse.frames"

// Type says what a frame holds. Readers skip those that they do not know.
type Type byte

// The types of frames.
const (
	Stdin  Type = 0  // bytes, to the server
	Stdout Type = 1  // bytes
	Stderr Type = 2  // bytes
	Resize Type = 3  // a Size, to the server
	Exit   Type = 4  // an ExitStatus, the last frame
	Gap    Type = 16 // a Hole
	Quiet  Type = 17 // nothing: the sender is still there
	Taken  Type = 18 // an Input, to who named its input
)

// InputHeader tells, in the answer to who named its input, how many bytes of it
// were taken over earlier connections.
const InputHeader = "Fuse-Input"

const (
	// HeaderSize is that of a frame, in bytes.
	HeaderSize = 8
	// MaxPayload is the most that a frame holds, in bytes.
	MaxPayload = 1 << 20
)

// Size is the payload of Resize.
type Size struct {
	Rows int `json:"rows"`
	Cols int `json:"cols"`
}

// ExitStatus is the payload of Exit. Public clients read exit_code alone.
type ExitStatus struct {
	ExitCode int    `json:"exit_code"`
	Signal   string `json:"signal,omitempty"`
	TimedOut bool   `json:"timed_out,omitempty"`
	Failure  string `json:"failure,omitempty"`
}

// Hole is the payload of Gap: where a stream goes on after bytes were dropped.
type Hole struct {
	Stream int   `json:"stream"` // as the type of its frames
	Offset int64 `json:"offset"`
}

// Input is the payload of Taken: how many bytes of a named input the process has.
type Input struct {
	Taken int64 `json:"taken"`
}

// Append adds a frame to b. The payload must not be over MaxPayload.
func Append(b []byte, t Type, payload []byte) []byte {
	b = append(b, byte(t), 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// AppendJSON adds a frame whose payload is a JSON document.
func AppendJSON(b []byte, t Type, v any) []byte {
	payload, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Errorf("encode a frame: %w", err)) // of our own types
	}
	return Append(b, t, payload)
}

// Clamp brings a size asked for by a client into bounds; false: it says nothing.
func (s Size) Clamp() (Size, bool) {
	const most = 1<<16 - 1
	if s.Rows <= 0 || s.Cols <= 0 {
		return Size{}, false
	}
	return Size{min(s.Rows, most), min(s.Cols, most)}, true
}

// Reader reads frames one after another.
type Reader struct {
	r      io.Reader
	header [HeaderSize]byte
	buf    []byte
}

// NewReader reads from r.
func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Next returns the next frame, whose payload is good until the call after. An
// end between frames is io.EOF, one within io.ErrUnexpectedEOF.
func (r *Reader) Next() (Type, []byte, error) {
	if _, err := io.ReadFull(r.r, r.header[:]); err != nil {
		return 0, nil, err
	}
	t, size, err := ParseHeader(r.header)
	if err != nil {
		return 0, nil, err
	}
	if cap(r.buf) < size {
		r.buf = make([]byte, size)
	}
	r.buf = r.buf[:size]
	if _, err := io.ReadFull(r.r, r.buf); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return t, r.buf, nil
}

// ParseHeader reads a frame's header and refuses a length over MaxPayload.
func ParseHeader(h [HeaderSize]byte) (Type, int, error) {
	size := binary.BigEndian.Uint32(h[4:])
	if size > MaxPayload {
		return 0, 0, fmt.Errorf("a frame of %d bytes is larger than the %d allowed", size, MaxPayload)
	}
	return Type(h[0]), int(size), nil
}
