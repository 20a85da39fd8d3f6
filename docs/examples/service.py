"""A web service that draws saliency maps. Requests share one network, each in a thread of its own.

pip install fastapi uvicorn python-multipart
uvicorn service:app
curl -F photo=@photo.jpg 'localhost:8000/saliency?target=tabby' > map.png
"""

import io

from fastapi import FastAPI, HTTPException, Response, UploadFile

import ebcli

app = FastAPI()
model = ebcli.load_model()


@app.post("/saliency")
def saliency(photo: UploadFile, target: str | None = None) -> Response:
    try:
        found = ebcli.explain(model, photo.file, target)
    except ebcli.EbcliError as error:
        raise HTTPException(422, str(error)) from error
    content = io.BytesIO()
    found.picture.save(content, "PNG")
    about = {"X-Class": found.classes[0], "X-Strength": f"{found.strength[0]:.4f}"}
    return Response(content.getvalue(), media_type="image/png", headers=about)
