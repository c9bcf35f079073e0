package image

import (
	"encoding/binary"
	"errors"
)

// lz4Magic starts the "legacy" LZ4 frame that the kernel's build uses.
const lz4Magic = 0x184c2102

var errLZ4 = errors.New("lz4: the data is damaged")

// unLZ4 decodes a legacy LZ4 frame: blocks of at most 8 MiB, each preceded by
// its compressed size. It stops at limit bytes of output.
func unLZ4(src []byte, limit int) ([]byte, error) {
	if len(src) < 4 || binary.LittleEndian.Uint32(src) != lz4Magic {
		return nil, errLZ4
	}
	src = src[4:]
	var out []byte
	for len(src) >= 4 {
		n := binary.LittleEndian.Uint32(src)
		if n == lz4Magic {
			src = src[4:]
			continue
		}
		if n == 0 || uint64(n) > uint64(len(src)-4) {
			break // the kernel appends its own size field after the last block
		}
		var err error
		if out, err = lz4Block(out, src[4:4+n], limit); err != nil {
			return nil, err
		}
		src = src[4+n:]
	}
	return out, nil
}

// lz4Block appends one decoded block to out. Matches never reach before the
// block's own start.
func lz4Block(out, src []byte, limit int) ([]byte, error) {
	start := len(out)
	for len(src) > 0 {
		token := src[0]
		lit, rest, err := lz4Length(int(token>>4), src[1:])
		if err != nil || lit > len(rest) || len(out)+lit > limit {
			return nil, errLZ4
		}
		out = append(out, rest[:lit]...)
		src = rest[lit:]
		if len(src) == 0 {
			return out, nil // the last sequence has no match
		}
		if len(src) < 2 {
			return nil, errLZ4
		}
		offset := int(binary.LittleEndian.Uint16(src))
		match, rest, err := lz4Length(int(token&15), src[2:])
		match += 4
		if err != nil || offset == 0 || offset > len(out)-start || len(out)+match > limit {
			return nil, errLZ4
		}
		for from := len(out) - offset; match > 0; {
			n := min(match, len(out)-from)
			out = append(out, out[from:from+n]...)
			from, match = from+n, match-n
		}
		src = rest
	}
	return out, nil
}

func lz4Length(n int, src []byte) (int, []byte, error) {
	if n < 15 {
		return n, src, nil
	}
	for i, b := range src {
		n += int(b)
		if b != 255 {
			return n, src[i+1:], nil
		}
	}
	return 0, nil, errLZ4
}
