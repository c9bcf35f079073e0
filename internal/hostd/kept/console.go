package kept

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1/guestwirev1connect"
)

// How much of a console is read at a time, in bytes.
const (
	defaultConsole = 256 << 10
	maxConsole     = 1 << 20
)

// ServeHTTP passes a call on to the guest, but those that are the host's own
// to answer.
func (g *Guest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, "/"+guestwirev1connect.ConsoleName+"/") {
		g.Client.ServeHTTP(w, r)
		return
	}
	_, serve := guestwirev1connect.NewConsoleHandler(consoleService{g.keeper}, connect.WithReadMaxBytes(guestwire.MaxMessage))
	serve.ServeHTTP(w, r)
}

type consoleService struct{ keeper }

// ReadConsole returns the end of what the machine wrote.
func (s consoleService) ReadConsole(_ context.Context, req *connect.Request[guestwirev1.ReadConsoleRequest]) (*connect.Response[guestwirev1.ReadConsoleResponse], error) {
	most := req.Msg.GetMaxBytes()
	if most <= 0 {
		most = defaultConsole
	}
	res := &guestwirev1.ReadConsoleResponse{}
	var err error
	if res.Output, res.Cut, err = end(filepath.Join(s.dir, Console), min(most, maxConsole)); err != nil {
		return nil, guestwire.Refuse(fleet.Wrap(fleet.CodeUnavailable, err, "the console cannot be read"))
	}
	r, err := s.load()
	if err != nil {
		return nil, guestwire.Refuse(err)
	}
	res.Reboots = told(r.Boots)
	return connect.NewResponse(res), nil
}

// end returns the last bytes of a file without the hole that its trimming may
// leave at the beginning, and whether there was more.
func end(path string, most int64) (data []byte, cut bool, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	from := max(0, st.Size()-most)
	data, err = io.ReadAll(io.NewSectionReader(f, from, most))
	whole := len(data)
	data = []byte(strings.TrimLeft(string(data), "\x00"))
	return data, from > 0 || len(data) < whole, err
}
