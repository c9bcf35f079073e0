package sim

import (
	"encoding/binary"
	"io"
	"strings"

	"google.golang.org/protobuf/proto"

	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

// firstMessage tells of the first message of a stream once it has been read.
type firstMessage struct {
	io.ReadCloser
	heard func([]byte)
	seen  []byte
}

// Read implements io.Reader.
func (f *firstMessage) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	if f.heard == nil {
		return n, err
	}
	f.seen = append(f.seen, p[:n]...)
	if len(f.seen) >= envelope {
		if size := int(binary.BigEndian.Uint32(f.seen[1:envelope])); len(f.seen) >= envelope+size {
			f.heard(f.seen[envelope : envelope+size])
			f.heard, f.seen = nil, nil
		}
	}
	return n, err
}

// execOrdered writes a command down that a host is told to run.
func (h *host) execOrdered(from string, first []byte) (end func(refused string)) {
	var m hostwirev1.ExecRequest
	if proto.Unmarshal(first, &m) != nil || m.GetStart() == nil {
		return nil
	}
	start := m.GetStart()
	return h.rec.begin(entry{
		Host: h.id, Deed: deedOrder, Verb: "exec", What: strings.Join(start.GetArgv(), " "), Server: from,
		VMID: start.GetRef().GetVmId(), UID: start.GetRef().GetUid(), OpID: start.GetRef().GetOperationId(),
		Fleet: start.GetFence().GetFleetId(), Term: start.GetFence().GetTerm(),
	})
}

// began is empty if a command was begun, as its answer says.
func began(answer []byte) (refused string) {
	for len(answer) >= envelope {
		n := int(binary.BigEndian.Uint32(answer[1:envelope]))
		if len(answer) < envelope+n {
			break
		}
		var m hostwirev1.ExecResponse
		if answer[0]&2 == 0 && proto.Unmarshal(answer[envelope:envelope+n], &m) == nil && m.GetStarted() != nil {
			return ""
		}
		answer = answer[envelope+n:]
	}
	return "not begun"
}

// nothingRunsTwice is a part of promise 3: a command that was asked for once, or
// again with the same key, runs once at most. Each has words of its own.
func (j *judgement) nothingRunsTwice() {
	ran := map[string]entry{}
	for _, e := range j.entries {
		if e.Deed != deedOrder || e.Verb != "exec" || e.Refused != "" {
			continue
		}
		if before, twice := ran[e.What]; twice {
			j.wrong(3, e.VMID, "%q ran twice: %v and %v", e.What, before, e)
		}
		ran[e.What] = e
	}
}
