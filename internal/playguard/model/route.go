package model

// Route is a name under which a proxy on the marquee leads to a service.
type Route struct {
	Host    string `json:"host"`
	Service string `json:"service"`
	Port    int    `json:"port"` // in the container
	Proxy   string `json:"proxy"`
}
