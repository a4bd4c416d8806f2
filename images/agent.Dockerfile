# The agent alone, for whoever puts it into an image by hand: COPY --from=muster-agent /muster/agent /muster/agent
# `make images` builds it; the context is dist/image.
FROM scratch
COPY agent /muster/agent
# Only a number lets Kubernetes see that it is not root.
USER 65532:65532
EXPOSE 7896
ENTRYPOINT ["/muster/agent"]
