package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/hostwire/hostwirev1/hostwirev1connect"
)

// weather is how bad the network is: chances per call.
type weather struct {
	loseCall, loseAnswer, repeat float64
	slow                         time.Duration // most that a call is held up, each way
}

// network is everything between processes.
type network struct {
	mu      sync.Mutex
	rnd     *rand.Rand
	weather weather
	slow    map[string]time.Duration // more for this host
	down    map[string]bool          // no call reaches this host
	only    *process                 // the one that clients find; nil: whichever serves
	late    sync.WaitGroup           // copies still on their way
}

// fortune is what happens to one call.
type fortune struct {
	loseCall, loseAnswer, repeat bool
	there, back, later           time.Duration
	hang                         bool // a lost call shows as silence, not as an error
}

func (n *network) draw(host string) fortune {
	n.mu.Lock()
	defer n.mu.Unlock()
	chance := func(p float64) bool { return n.rnd.Float64() < p }
	upTo := func(d time.Duration) time.Duration { return time.Duration(n.rnd.Int64N(int64(d) + 1)) }
	w := n.weather
	f := fortune{loseCall: chance(w.loseCall), loseAnswer: chance(w.loseAnswer), repeat: chance(w.repeat), hang: chance(0.5)}
	f.there = time.Millisecond + upTo(w.slow) + upTo(n.slow[host])
	f.back = time.Millisecond + upTo(w.slow)
	f.later = upTo(90 * time.Second)
	f.loseCall = f.loseCall || n.down[host]
	return f
}

var errNetwork = errors.New("connection reset by peer")

// wire is the way from one process to one host.
type wire struct {
	w    *world
	p    *process
	host string
}

// RoundTrip implements http.RoundTripper. The call goes its own way: it is not
// taken back when the caller stops to wait for it.
func (x *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasPrefix(r.URL.Path, "/"+hostwirev1connect.GuestName+"/") || r.URL.Path == hostwirev1connect.SnapshotsFollowVMProcedure {
		return x.stream(r)
	}
	body, err := io.ReadAll(r.Body)
	if err = errors.Join(err, r.Body.Close()); err != nil {
		return nil, err
	}
	f := x.w.net.draw(x.host)
	if f.repeat {
		x.w.net.late.Go(func() {
			if pause(x.w.ctx, x.w.ctx, f.there+f.later) == nil {
				_, _ = x.deliver(x.w.ctx, r, body) //nolint:bodyclose // in memory, and nobody listens to the answer
			}
		})
	}
	type answer struct {
		resp *http.Response
		err  error
	}
	answers := make(chan answer, 1)
	x.w.net.late.Go(func() {
		resp, err := x.carry(r, body, f) //nolint:bodyclose // in memory; the caller closes it
		answers <- answer{resp, err}
	})
	select {
	case a := <-answers:
		return a.resp, a.err
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	case <-x.p.ctx.Done():
		return nil, errKilled
	}
}

func (x *wire) carry(r *http.Request, body []byte, f fortune) (*http.Response, error) {
	silence := func() error {
		if !f.hang {
			return errNetwork
		}
		<-r.Context().Done()
		return context.Cause(r.Context())
	}
	if err := x.p.pass(); err != nil {
		return nil, err
	}
	if f.loseCall || x.p.isCut(x.host) {
		return nil, silence()
	}
	if err := pause(x.w.ctx, x.w.ctx, f.there); err != nil {
		return nil, err
	}
	resp, err := x.deliver(r.Context(), r, body)
	if err != nil {
		return nil, err
	}
	if err := pause(x.w.ctx, x.w.ctx, f.back); err != nil {
		return nil, err
	}
	if f.loseAnswer || x.p.isCut(x.host) {
		return nil, silence()
	}
	return resp, x.p.pass()
}

// deliver has the host's agent of this moment answer a call.
func (x *wire) deliver(ctx context.Context, r *http.Request, body []byte) (*http.Response, error) {
	h := x.w.hosts[x.host]
	a := h.now()
	if a == nil {
		return nil, errNetwork
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	in := r.Clone(ctx)
	in.Body, in.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	in.RequestURI, in.RemoteAddr = r.URL.RequestURI(), "192.0.2.1:1"
	end := h.ordered(x.p.s.name, r.URL.Path, body)
	if x.w.broken.obeysAll {
		in.Body = io.NopCloser(bytes.NewReader(h.asLeader(r.URL.Path, body)))
		in.ContentLength = -1
	}
	rec := httptest.NewRecorder()
	a.handler.ServeHTTP(rec, in)
	resp := rec.Result()
	end(resp, rec.Body.Bytes())
	if r.URL.Path == hostwirev1connect.HostClaimProcedure && resp.StatusCode == http.StatusOK {
		h.claimed(body)
	}
	if a.ctx.Err() != nil {
		return nil, errNetwork
	}
	if r.URL.Path == hostwirev1connect.VMListVMsProcedure && resp.StatusCode == http.StatusOK {
		resp.Body = io.NopCloser(bytes.NewReader(h.shaded(rec.Body.Bytes())))
		resp.ContentLength = -1
		resp.Header.Del("Content-Length")
	}
	return resp, nil
}

// ordered writes an order down, and later how it was answered.
func (h *host) ordered(from, path string, body []byte) (end func(*http.Response, []byte)) {
	none := func(*http.Response, []byte) {}
	var e entry
	var fence *hostwirev1.Fence
	var ref *hostwirev1.Ref
	switch path {
	case hostwirev1connect.HostClaimProcedure:
		var m hostwirev1.ClaimRequest
		if proto.Unmarshal(body, &m) != nil {
			return none
		}
		e, fence = entry{Deed: deedClaim}, m.GetFence()
	case hostwirev1connect.VMDestroyVMProcedure:
		var m hostwirev1.DestroyVMRequest
		if proto.Unmarshal(body, &m) != nil {
			return none
		}
		e, fence, ref = entry{Deed: deedOrder, Verb: "destroy"}, m.GetFence(), m.GetRef()
	case hostwirev1connect.VMDrainVMProcedure:
		var m hostwirev1.DrainVMRequest
		if proto.Unmarshal(body, &m) != nil {
			return none
		}
		e, fence, ref = entry{Deed: deedOrder, Verb: "drain"}, m.GetFence(), m.GetRef()
	case hostwirev1connect.VMCreateVMProcedure:
		var m hostwirev1.CreateVMRequest
		if len(body) < envelope || proto.Unmarshal(body[envelope:], &m) != nil {
			return none
		}
		e, fence, ref = entry{Deed: deedOrder, Verb: "create"}, m.GetFence(), m.GetRef()
	default:
		m := snapshotOrder(path)
		if m == nil || proto.Unmarshal(body[min(len(body), skipped(path)):], m) != nil {
			return none
		}
		e, fence = entry{Deed: deedOrder, Verb: path[strings.LastIndexByte(path, '/')+1:]}, m.GetFence()
		switch m := m.(type) {
		case interface{ GetRef() *hostwirev1.Ref }:
			ref = m.GetRef()
		case *hostwirev1.DeleteSnapshotRequest:
			e.What = m.GetSnapshotId()
		}
	}
	e.Host, e.Server = h.id, from
	e.Fleet, e.Term = fence.GetFleetId(), fence.GetTerm()
	e.VMID, e.UID, e.OpID = ref.GetVmId(), ref.GetUid(), ref.GetOperationId()
	done := h.rec.begin(e)
	return func(resp *http.Response, answer []byte) { done(refusal(resp, answer)) }
}

// envelope is what Connect puts before each message of a stream: flags and
// length.
const envelope = 5

// refusal is why an order was not obeyed.
func refusal(resp *http.Response, answer []byte) string {
	if resp.StatusCode != http.StatusOK {
		return strings.TrimSpace(string(answer))
	}
	// The last message of a stream says how it ended.
	for len(answer) >= envelope {
		n := int(binary.BigEndian.Uint32(answer[1:envelope]))
		if len(answer) < envelope+n {
			break
		}
		if answer[0]&2 != 0 && bytes.Contains(answer[envelope:envelope+n], []byte(`"error"`)) {
			return string(answer[envelope : envelope+n])
		}
		answer = answer[envelope+n:]
	}
	return ""
}

// shaded leaves the VM that the host lies about out of a complete listing,
// once.
func (h *host) shaded(body []byte) []byte {
	var m hostwirev1.ListVMsResponse
	if proto.Unmarshal(body, &m) != nil || !m.GetComplete() {
		return body
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, vm := range m.GetVms() {
		if told, lies := h.lie[vm.GetUid()]; lies && !told {
			h.lie[vm.GetUid()] = true
			h.rec.note(entry{Host: h.id, Deed: deedLied, VMID: vm.GetVmId(), UID: vm.GetUid()})
			m.Vms = append(m.Vms[:i], m.Vms[i+1:]...)
			break
		}
	}
	shaded, err := proto.Marshal(&m)
	if err != nil {
		return body
	}
	return shaded
}

// stream carries a call whose two directions run at once. It can be refused or
// cut, not repeated.
func (x *wire) stream(r *http.Request) (*http.Response, error) {
	f := x.w.net.draw(x.host)
	if err := x.p.pass(); err != nil {
		return nil, err
	}
	if err := pause(r.Context(), x.p.ctx, f.there); err != nil {
		return nil, err
	}
	a := x.w.hosts[x.host].now()
	if a == nil || f.loseCall || f.loseAnswer || x.p.isCut(x.host) {
		return nil, errNetwork
	}
	ctx, cancel := context.WithCancel(r.Context())
	in := r.Clone(ctx)
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/2.0", 2, 0
	in.RequestURI, in.RemoteAddr = r.URL.RequestURI(), "192.0.2.1:1"
	reader, writer := io.Pipe()
	s := &streamAnswer{header: http.Header{}, out: writer, began: make(chan struct{}), in: r.Body}
	order := &firstMessage{ReadCloser: r.Body}
	if r.URL.Path == hostwirev1connect.GuestExecProcedure {
		s.exec = true
		order.heard = func(first []byte) { s.ends(x.w.hosts[x.host].execOrdered(x.p.s.name, first)) }
	}
	in.Body = order
	stop := context.AfterFunc(a.ctx, func() { s.cut(errNetwork) })
	stopToo := context.AfterFunc(x.p.ctx, func() { s.cut(errKilled) })
	x.w.net.late.Go(func() {
		defer cancel()
		a.handler.ServeHTTP(s, in)
		s.WriteHeader(http.StatusOK)
		s.ended()
		stop()
		stopToo()
		s.cut(io.EOF)
	})
	select {
	case <-s.began:
	case <-r.Context().Done():
		s.cut(context.Cause(r.Context()))
		return nil, context.Cause(r.Context())
	}
	context.AfterFunc(r.Context(), func() { s.cut(context.Cause(r.Context())) })
	return &http.Response{
		Status: http.StatusText(s.status), StatusCode: s.status, Proto: in.Proto, ProtoMajor: 2, Header: s.sent, Body: reader, Request: r, ContentLength: -1,
		Trailer: http.Header{},
	}, nil
}

// streamAnswer is an http.ResponseWriter whose body is read as it is written.
type streamAnswer struct {
	header http.Header
	out    *io.PipeWriter
	in     io.Closer

	once   sync.Once
	began  chan struct{}
	status int
	sent   http.Header

	exec bool
	mu   sync.Mutex
	end  func(refused string) // of the exec's order
	said bytes.Buffer
}

func (s *streamAnswer) ends(end func(string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = end
}

// ended writes down what came of an exec.
func (s *streamAnswer) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		s.end(began(s.said.Bytes()))
	}
}

// Header implements http.ResponseWriter.
func (s *streamAnswer) Header() http.Header { return s.header }

// WriteHeader implements http.ResponseWriter.
func (s *streamAnswer) WriteHeader(status int) {
	s.once.Do(func() {
		s.status, s.sent = status, s.header.Clone()
		close(s.began)
	})
}

// Write implements http.ResponseWriter.
func (s *streamAnswer) Write(p []byte) (int, error) {
	s.WriteHeader(http.StatusOK)
	if s.exec {
		s.mu.Lock()
		s.said.Write(p)
		s.mu.Unlock()
	}
	return s.out.Write(p)
}

// Flush implements http.Flusher.
func (s *streamAnswer) Flush() { s.WriteHeader(http.StatusOK) }

// SetReadDeadline ends a read that waits, which is all that it is used for.
func (s *streamAnswer) SetReadDeadline(time.Time) error { return s.in.Close() }

// SetWriteDeadline is for callers that do not read; those here do.
func (s *streamAnswer) SetWriteDeadline(time.Time) error { return nil }

func (s *streamAnswer) cut(err error) {
	_ = s.out.CloseWithError(err)
	_ = s.in.Close() // wakes what reads from it
}
