package guestwire

import (
	"io"
	"net/http"
	"net/url"
	"strings"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1/guestwirev1connect"
)

// Surface are the calls that pass through a host as they are.
type Surface struct {
	Processes guestwirev1connect.ProcessesClient
	Files     guestwirev1connect.FilesClient
	Services  guestwirev1connect.ServicesClient
	Console   guestwirev1connect.ConsoleClient // answered by the host
}

// NewSurface makes the clients of calls that go through do to base.
func NewSurface(do connect.HTTPClient, base string, opts ...connect.ClientOption) Surface {
	opts = append([]connect.ClientOption{
		connect.WithAcceptCompression("gzip", nil, nil), connect.WithReadMaxBytes(MaxMessage),
	}, opts...)
	return Surface{
		Processes: guestwirev1connect.NewProcessesClient(do, base, opts...),
		Files:     guestwirev1connect.NewFilesClient(do, base, opts...),
		Services:  guestwirev1connect.NewServicesClient(do, base, opts...),
		Console:   guestwirev1connect.NewConsoleClient(do, base, opts...),
	}
}

// Forwarded reports whether a path is one of Surface's calls. Nothing else
// passes: the machine's own calls are its host's.
func Forwarded(path string) bool {
	for _, name := range []string{guestwirev1connect.ProcessesName, guestwirev1connect.FilesName, guestwirev1connect.ServicesName, guestwirev1connect.ConsoleName} {
		if strings.HasPrefix(path, "/"+name+"/") {
			return true
		}
	}
	return false
}

// forwardChunk is how much of an answer is passed on at a time, in bytes.
const forwardChunk = 64 << 10

// ServeHTTP passes a call on to the guest, with the guest's token in place of
// the caller's, and the answer back. It holds one piece each way, so whoever
// does not read holds up the other end.
func (c *Client) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := r.Clone(r.Context())
	out.RequestURI, out.Host = "", ""
	out.URL = &url.URL{Scheme: "http", Host: "guest", Path: r.URL.Path}
	for name := range out.Header {
		if name == "Authorization" || strings.HasPrefix(name, "Fuse-") {
			delete(out.Header, name)
		}
	}
	res, err := c.bearer.Do(out)
	if err != nil {
		refuse := connect.NewErrorWriter()
		_ = refuse.Write(w, r, connect.NewError(connect.CodeUnavailable, fleet.ErrGuestUnavailable)) // the caller is gone if it fails
		return
	}
	defer res.Body.Close()
	for name, values := range res.Header {
		if !strings.HasPrefix(name, "Fuse-") { // those are the host's to say
			w.Header()[name] = values
		}
	}
	w.WriteHeader(res.StatusCode)
	pass(w, res.Body)
}

// pass copies an answer piece by piece as it comes. One that breaks off ends
// as broken at the caller too.
func pass(w http.ResponseWriter, body io.Reader) {
	flush := http.NewResponseController(w)
	buf := make([]byte, forwardChunk)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return
			}
			if flush.Flush() != nil {
				return
			}
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}
