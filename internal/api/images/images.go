// Package images holds the routes of the images that hosts keep.
package images

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/images"
)

// Service is what the routes serve: images.Service.
type Service interface {
	List(ctx context.Context) (held []images.Held, unseen map[string]error, err error)
	Pull(ctx context.Context, image string, hostIDs []string) (pinned string, out []images.Outcome, err error)
	UnderWay() []images.UnderWay
	Remove(ctx context.Context, image string, hostIDs []string, force bool) ([]images.Outcome, error)
	Prune(ctx context.Context, hostIDs []string, unused time.Duration, maxBytes int64) ([]images.Outcome, error)
}

type routes struct{ s Service }

// Routes are the routes of images.
func Routes(s Service) []web.Route {
	r := routes{s}
	return []web.Route{
		{Method: http.MethodGet, Pattern: "/v1/images", Slow: true, Handle: r.list},
		{Method: http.MethodPost, Pattern: "/v1/images/pull", BodyLimit: web.BodyLimit, Slow: true, Handle: r.pull},
		{Method: http.MethodGet, Pattern: "/v1/images/pulls", Handle: r.pulls},
		{Method: http.MethodPost, Pattern: "/v1/images/remove", BodyLimit: web.BodyLimit, Slow: true, Handle: r.remove},
		{Method: http.MethodPost, Pattern: "/v1/images/prune", BodyLimit: web.BodyLimit, Slow: true, Handle: r.prune},
	}
}

// maxHosts is how many hosts a request may name.
const maxHosts = 1024

func checkHosts(ids []string) error {
	if len(ids) > maxHosts {
		return fleet.Invalid("host_ids", "1024 hosts", "leave it out for all hosts", "names %d hosts", len(ids))
	}
	return nil
}

func (r routes) list(w http.ResponseWriter, req *web.Request) error {
	held, unseen, err := r.s.List(req.Context())
	if err != nil {
		return err
	}
	out := gen.ImageList{Images: make([]gen.HeldImage, 0, len(held))}
	for _, h := range held {
		out.Images = append(out.Images, gen.HeldImage{
			Name: h.Name, Digest: h.Digest, Resolved: h.Resolved, Arch: h.Arch, Origin: h.Origin, Size: h.Size,
			DiskBytes: h.DiskBytes, InUse: h.InUse, UsedAt: h.UsedAt, Hosts: h.Hosts,
		})
	}
	for id, err := range unseen {
		out.Unseen = append(out.Unseen, gen.ImageOutcome{HostID: id, Error: errorOf(req, id, err)})
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (r routes) pulls(w http.ResponseWriter, _ *web.Request) error {
	out := gen.ImagePulls{Pulls: []gen.ImagePull{}}
	for _, p := range r.s.UnderWay() {
		out.Pulls = append(out.Pulls, gen.ImagePull{
			Image: p.Image, HostID: p.HostID, Phase: p.Phase, DoneBytes: p.Done, TotalBytes: p.Total, BytesPerSecond: p.Rate,
		})
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

// errorOf is what a caller may know of a host's error; the rest is logged.
func errorOf(req *web.Request, hostID string, err error) gen.ErrorInfo {
	if err == nil {
		return gen.ErrorInfo{}
	}
	req.Log.WarnContext(req.Context(), "images of a host", "host_id", hostID, "error", err)
	var fe *fleet.Error
	if errors.As(err, &fe) {
		return gen.ErrorInfo{Code: string(fe.Code), Message: fe.Message, Details: fe.Details}
	}
	return gen.ErrorInfo{Code: string(fleet.CodeInternal), Message: "the host could not do it; the server's log says why"}
}

func outcomes(req *web.Request, list []images.Outcome) []gen.ImageOutcome {
	out := make([]gen.ImageOutcome, 0, len(list))
	for _, o := range list {
		out = append(out, gen.ImageOutcome{
			HostID: o.HostID, Digest: o.Image.Digest, Removed: o.Count, FreedBytes: o.Freed, Error: errorOf(req, o.HostID, o.Err),
		})
	}
	return out
}

func (r routes) pull(w http.ResponseWriter, req *web.Request) error {
	var body gen.PullImage
	if err := web.Decode(w, req, &body); err != nil {
		return err
	}
	if err := checkHosts(body.HostIDs); err != nil {
		return err
	}
	pinned, list, err := r.s.Pull(req.Context(), body.Image, body.HostIDs)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, gen.ImageOutcomes{Image: pinned, Hosts: outcomes(req, list)})
	return nil
}

func (r routes) remove(w http.ResponseWriter, req *web.Request) error {
	var body gen.RemoveImage
	if err := web.Decode(w, req, &body); err != nil {
		return err
	}
	if err := checkHosts(body.HostIDs); err != nil {
		return err
	}
	if body.Image == "" {
		return fleet.Invalid("image", "a name, a reference or a digest", "name the image that is to go", "is missing")
	}
	list, err := r.s.Remove(req.Context(), body.Image, body.HostIDs, body.Force)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, gen.ImageOutcomes{Image: body.Image, Hosts: outcomes(req, list)})
	return nil
}

func (r routes) prune(w http.ResponseWriter, req *web.Request) error {
	var body gen.PruneImages
	if err := web.Decode(w, req, &body); err != nil {
		return err
	}
	if err := checkHosts(body.HostIDs); err != nil {
		return err
	}
	if body.UnusedSeconds < 0 || body.MaxBytes < 0 {
		return fleet.Invalid("unused_seconds", "0 or more", "leave out what is not to count", "and max_bytes must not be negative")
	}
	unused := time.Duration(min(body.UnusedSeconds, int64(100*365*24*3600))) * time.Second
	list, err := r.s.Prune(req.Context(), body.HostIDs, unused, body.MaxBytes)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, gen.ImageOutcomes{Hosts: outcomes(req, list)})
	return nil
}
