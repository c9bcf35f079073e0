package guest

import (
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/guestops"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
)

func (s routes) console(w http.ResponseWriter, r *web.Request) error {
	most, err := number(r.URL.Query(), "max_bytes")
	if err != nil {
		return err
	}
	session, err := s.Sessions.Open(r.Context(), r.Param, guestops.Use{Actor: r.Principal().Actor(), Verb: "console.read", Left: true})
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, cancel := quick(r)
	defer cancel()
	res, err := session.Console.ReadConsole(ctx, connect.NewRequest(&guestwirev1.ReadConsoleRequest{MaxBytes: most}))
	if err != nil {
		return session.Explain(ctx, err)
	}
	out := gen.ConsoleLog{Output: strings.ToValidUTF8(string(res.Msg.GetOutput()), "?"), Truncated: res.Msg.GetCut(), Reboots: []gen.Reboot{}}
	for _, b := range res.Msg.GetReboots() {
		out.Reboots = append(out.Reboots, gen.Reboot{At: time.UnixMilli(b.GetAtUnixMs()).UTC(), Cause: b.GetCause()})
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}
