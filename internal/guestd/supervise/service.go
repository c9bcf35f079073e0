package supervise

import (
	"context"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1/guestwirev1connect"
)

// Service serves a supervisor in guestwire.
type Service struct{ Supervisor *Supervisor }

var _ guestwirev1connect.ServicesHandler = Service{}

// ListServices lists services in the order of their starts.
func (s Service) ListServices(context.Context, *connect.Request[guestwirev1.ListServicesRequest]) (*connect.Response[guestwirev1.ListServicesResponse], error) {
	res := &guestwirev1.ListServicesResponse{}
	for _, u := range s.Supervisor.List() {
		res.Services = append(res.Services, &guestwirev1.ServiceInfo{
			Name: u.Name, State: string(u.State), SinceUnixMs: u.Since.UnixMilli(), Health: string(u.Health), Restarts: int32(u.Restarts),
			Process: u.Process, Ended: u.Ended, ExitCode: int32(u.ExitCode), Message: u.Message,
		})
	}
	return connect.NewResponse(res), nil
}
