module github.com/fusevm/fuse/tools/openapi

go 1.26.0
