package guest

import (
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
)

func (s routes) services(w http.ResponseWriter, r *web.Request) error {
	session, err := s.open(r, "services.read", nil)
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, cancel := quick(r)
	defer cancel()
	res, err := session.Services.ListServices(ctx, connect.NewRequest(&guestwirev1.ListServicesRequest{}))
	if err != nil {
		return session.Explain(ctx, err)
	}
	out := gen.ServiceList{Services: []gen.EnvironmentService{}}
	for _, u := range res.Msg.GetServices() {
		out.Services = append(out.Services, serviceOf(u))
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func serviceOf(u *guestwirev1.ServiceInfo) gen.EnvironmentService {
	out := gen.EnvironmentService{
		Name: u.GetName(), State: u.GetState(), Since: time.UnixMilli(u.GetSinceUnixMs()).UTC(), Health: u.GetHealth(),
		Restarts: int(u.GetRestarts()), Process: u.GetProcess(), Message: strings.ToValidUTF8(u.GetMessage(), "?"),
	}
	if u.GetEnded() {
		out.ExitCode = new(int(u.GetExitCode()))
	}
	return out
}
