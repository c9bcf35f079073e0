// Package usage holds the routes of what environments take of their hosts.
package usage

import (
	"context"
	"net/http"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/usage"
)

// Service is what the routes serve: usage.Service.
type Service interface {
	List(ctx context.Context) (all []usage.Sample, unseen []string)
	Of(ctx context.Context, id string) (usage.Sample, error)
}

// Routes are the routes of usage.
func Routes(s Service) []web.Route {
	return []web.Route{
		{Method: http.MethodGet, Pattern: "/v1/usage", Handle: func(w http.ResponseWriter, r *web.Request) error {
			all, unseen := s.List(r.Context())
			out := gen.UsageList{Usage: []gen.Usage{}, Unseen: unseen}
			for _, sample := range all {
				if r.Principal().Sees(sample.Owner) {
					out.Usage = append(out.Usage, of(sample, r.Principal().SeesAll()))
				}
			}
			if !r.Principal().SeesAll() {
				out.Unseen = nil
			}
			web.WriteJSON(w, http.StatusOK, out)
			return nil
		}},
		{Method: http.MethodGet, Pattern: "/v1/environments/{id}/usage", Handle: func(w http.ResponseWriter, r *web.Request) error {
			sample, err := s.Of(r.Context(), r.Param)
			if err != nil {
				return err
			}
			web.WriteJSON(w, http.StatusOK, of(sample, true))
			return nil
		}},
	}
}

func of(s usage.Sample, all bool) gen.Usage {
	u := gen.Usage{
		ID: s.VMID, UID: s.UID, At: s.At, CPUSeconds: s.CPUSeconds, MemoryBytes: s.MemoryBytes, DiskBytes: s.DiskBytes,
		DiskReadBytes: s.DiskReadBytes, DiskWriteBytes: s.DiskWriteBytes, NetInBytes: s.NetInBytes, NetOutBytes: s.NetOutBytes,
	}
	if all {
		u.HostID = s.HostID
	}
	if r := s.Rates; r != nil {
		u.CPUs, u.DiskReadBps, u.DiskWriteBps, u.NetInBps, u.NetOutBps = &r.CPUs, &r.DiskReadBps, &r.DiskWriteBps, &r.NetInBps, &r.NetOutBps
	}
	return u
}
